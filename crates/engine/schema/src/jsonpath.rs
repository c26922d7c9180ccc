//! The JSONPath of printer columns and selectable fields: fields, indexes, wildcards and filters.
//! Source: client-go `util/jsonpath`, as far as printer columns use it.

use serde_json::Value;

/// Steps of a path at most; real ones have a handful.
const STEPS_MAX: usize = 64;
/// Values a path may lead to at most; columns show the first only.
const RESULTS_MAX: usize = 1000;

/// A compiled path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Filter(Filter),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    path: JsonPath,
    /// The comparison; without one the path must lead somewhere.
    comparison: Option<(Operator, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    LessOrEqual,
    GreaterOrEqual,
    Less,
    Greater,
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl JsonPath {
    /// Reads a path such as `.status.conditions[?(@.type=="Ready")].status`; what is wrong otherwise.
    pub(crate) fn parse(text: &str) -> Result<JsonPath, String> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
        let mut rest = text.strip_prefix(['$', '@']).unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, tail) = parse_step(rest)?;
            steps.extend(step);
            if steps.len() > STEPS_MAX {
                return Err(format!("more than {STEPS_MAX} steps"));
            }
            rest = tail;
        }
        Ok(JsonPath(steps))
    }

    /// The values the path leads to.
    pub(crate) fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.follow(value)).take(RESULTS_MAX).collect();
        }
        found
    }

    /// The first value the path leads to.
    pub(crate) fn first<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        self.find(value).into_iter().next()
    }

    /// The names of the fields of a path that has nothing else.
    pub(crate) fn plain_fields(&self) -> Option<Vec<&str>> {
        let name = |step: &'_ Step| match step {
            Step::Field(name) => Some(name.clone()),
            _ => None,
        };
        if self.0.iter().any(|step| name(step).is_none()) {
            return None;
        }
        Some(
            self.0
                .iter()
                .filter_map(|step| if let Step::Field(name) = step { Some(name.as_str()) } else { None })
                .collect(),
        )
    }
}

fn parse_step(text: &str) -> Result<(Option<Step>, &str), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let end = closing_bracket(rest).ok_or_else(|| format!("unclosed bracket in \"{text}\""))?;
        let step = parse_bracket(rest[..end].trim())?;
        return Ok((Some(step), &rest[end + 1..]));
    }
    let rest = text.strip_prefix('.').unwrap_or(text);
    if rest.starts_with('.') {
        return Err("recursive descent is not supported".to_owned());
    }
    let (name, rest) = take_name(rest);
    match name.as_str() {
        "" if rest.starts_with('[') || rest.is_empty() => Ok((None, rest)),
        "" => Err(format!("a name is missing before \"{rest}\"")),
        "*" => Ok((Some(Step::All), rest)),
        _ => Ok((Some(Step::Field(name)), rest)),
    }
}

/// A name up to the next dot or bracket; a backslash takes away the meaning of the character after it.
fn take_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, &text[index..]),
            _ => name.push(character),
        }
    }
    (name, "")
}

fn closing_bracket(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0;
    for (index, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(index),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn parse_bracket(text: &str) -> Result<Step, String> {
    if text == "*" {
        return Ok(Step::All);
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_filter(filter).map(Step::Filter);
    }
    if let Some(name) = unquote(text) {
        return Ok(Step::Field(name.replace('\\', "")));
    }
    text.parse()
        .map(Step::Index)
        .map_err(|_| format!("\"[{text}]\" is neither an index, a name nor a filter"))
}

fn unquote(text: &str) -> Option<&str> {
    let inner = |quote| text.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
    inner('\'').or_else(|| inner('"'))
}

fn parse_filter(text: &str) -> Result<Filter, String> {
    let mut quoted = None;
    for (index, character) in text.char_indices() {
        match (quoted, character) {
            (Some(open), _) if open == character => quoted = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quoted = Some(character),
            (None, _) => {
                let Some((sign, operator)) =
                    OPERATORS.iter().find(|(sign, _)| text[index..].starts_with(sign))
                else {
                    continue;
                };
                let path = JsonPath::parse(text[..index].trim())?;
                let operand = parse_operand(text[index + sign.len()..].trim())?;
                return Ok(Filter { path, comparison: Some((*operator, operand)) });
            }
        }
    }
    Ok(Filter { path: JsonPath::parse(text.trim())?, comparison: None })
}

fn parse_operand(text: &str) -> Result<Value, String> {
    match unquote(text) {
        Some(inner) => Ok(Value::from(inner)),
        None => {
            serde_json::from_str(text).map_err(|_| format!("\"{text}\" is no string, number or truth value"))
        }
    }
}

impl Step {
    fn follow<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match (self, value) {
            (Step::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Step::Index(index), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { length + index } else { *index };
                usize::try_from(index).ok().and_then(|index| items.get(index)).into_iter().collect()
            }
            (Step::All, Value::Array(items)) => items.iter().collect(),
            (Step::All, Value::Object(map)) => map.values().collect(),
            (Step::Filter(filter), Value::Array(items)) => {
                items.iter().filter(|item| filter.holds(item)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let found = self.path.first(item);
        match (&self.comparison, found) {
            (None, found) => found.is_some(),
            (Some(_), None) => false,
            (Some((operator, operand)), Some(found)) => {
                let order = match (found, operand) {
                    (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
                    (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
                    (a, b) if a == b => Some(std::cmp::Ordering::Equal),
                    _ => None,
                };
                match operator {
                    Operator::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
                    Operator::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
                    Operator::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
                    Operator::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
                    Operator::Less => order.is_some_and(std::cmp::Ordering::is_lt),
                    Operator::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &Value) {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}},
            "spec": {"hosts": ["one", "two"], "n": 3},
            "status": {"conditions": [
                {"type": "Synced", "status": "False"},
                {"type": "Ready", "status": "True", "n": 5},
            ]},
        });
        let path = JsonPath::parse(path).unwrap();
        assert_eq!(&Value::from(path.find(&object).into_iter().cloned().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn paths() {
        check(".spec.n", &json!([3]));
        check("{.spec.n}", &json!([3]));
        check(".spec.hosts[0]", &json!(["one"]));
        check(".spec.hosts[-1]", &json!(["two"]));
        check(".spec.hosts[7]", &json!([]));
        check(".spec.hosts[*]", &json!(["one", "two"]));
        check(".spec.hosts.x", &json!([]));
        check(r".metadata.annotations.a\.b/c", &json!(["dotted"]));
        check(".metadata.annotations['a.b/c']", &json!(["dotted"]));
        check(r#".status.conditions[?(@.type=="Ready")].status"#, &json!(["True"]));
        check(".status.conditions[?(@.type=='Ready')].status", &json!(["True"]));
        check(".status.conditions[?(@.type!='Ready')].status", &json!(["False"]));
        check(".status.conditions[?(@.n>4)].type", &json!(["Ready"]));
        check(".status.conditions[?(@.n)].type", &json!(["Ready"]));
    }

    #[test]
    fn malformed_paths() {
        for path in [".a[", ".a[x]", "..a", ".a[?(@.b==c)]", ".a..b"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
