//! Rules of custom resources in CEL: `x-kubernetes-validations`, on kube-cel.
//! Sources: apiextensions-apiserver `pkg/apiserver/schema/cel`, KEP-2876, KEP-4008.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use kube_cel::cel::Program;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::{CompiledSchema, ErrorKind, RootContext, ValidationError, Validator};
use serde_json::Value;

use crate::fault::{FaultKind, Faults};
use crate::path::Path;

/// The field of a schema that holds its rules.
const RULES: &str = "x-kubernetes-validations";
/// The longest rule. Source: what fits an object is far below it; a parser must not meet more.
const RULE_BYTES_MAX: usize = 16 << 10;
/// Functions and macros of Kubernetes' CEL that the evaluator lacks. A rule that uses one is refused with its definition:
/// later it would refuse every object.
const MISSING: [&str; 5] = ["bind", "sortBy", "transformList", "transformMap", "transformMapEntry"];
/// What a rule may name: its value and the old one, types, and what functions of Kubernetes' libraries are called on.
const NAMES: [&str; 26] = [
    "self",
    "oldSelf",
    "bool",
    "bytes",
    "double",
    "dyn",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
    "google",
    "kubernetes",
    "net",
    "base64",
    "cidr",
    "format",
    "ip",
    "math",
    "optional",
    "quantity",
    "regex",
    "semver",
    "sets",
];

/// The rules of one version of a custom kind.
pub(crate) struct RuleSet {
    any: bool,
    /// Compiled for the first object.
    compiled: OnceLock<CompiledSchema>,
    /// Rules that tell their fault at another place than their own.
    pointing: HashSet<String>,
    root: RootContext,
}

impl std::fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleSet").field("any", &self.any).finish_non_exhaustive()
    }
}

impl RuleSet {
    /// The rules in the schema of a kind.
    pub(crate) fn of(schema: &Value, (api_version, group, kind): (String, &str, &str)) -> Self {
        let (mut any, mut pointing) = (false, HashSet::new());
        each(&Path::Root, schema, &mut |_, rules| {
            any = true;
            let elsewhere = rules.iter().filter(|rule| rule["fieldPath"].is_string());
            pointing.extend(elsewhere.filter_map(|rule| rule["rule"].as_str()).map(str::to_owned));
        });
        let root = RootContext { api_version, api_group: group.to_owned(), kind: kind.to_owned() };
        Self { any, compiled: OnceLock::new(), pointing, root }
    }

    /// Checks an object whose fields have the right types; `schema` is what the rules were read from, `old` what the
    /// object replaces.
    pub(crate) fn check(&self, schema: &Value, (old, new): (Option<&Value>, &Value), faults: &mut Faults) {
        thread_local! {
            static VALIDATOR: Validator = Validator::new();
        }
        if !self.any {
            return;
        }
        let compiled = self.compiled.get_or_init(|| kube_cel::compile_schema(schema));
        let validate =
            |of: &Validator| of.validate_compiled_with_context(compiled, new, old, Some(&self.root));
        // The evaluator is not ours: whatever a rule makes of an object, the server goes on.
        let outcome = catch_unwind(AssertUnwindSafe(|| VALIDATOR.with(validate)));
        let Ok(outcome) = outcome else {
            faults.invalid(
                &Path::Root,
                "object",
                "a rule of its definition cannot be evaluated on this object",
            );
            return;
        };
        for error in outcome.err().into_iter().flatten() {
            // What cannot be compiled was accepted by an older server, which said that it is not enforced.
            let is_of_definition =
                matches!(error.kind, ErrorKind::CompilationFailure | ErrorKind::InvalidRule);
            if !is_of_definition && !self.is_unchanged(&error, new, old) {
                faults.at(error.field_path.clone(), kind_of(&error), shown(&error));
            }
        }
    }

    /// Whether a value that a rule finds wrong was so before: then it is no reason to refuse a change elsewhere. Rules that
    /// compare with the old value, and those that tell a fault at another place than their own, always count.
    fn is_unchanged(&self, error: &ValidationError, new: &Value, old: Option<&Value>) -> bool {
        let Some(old) = old else { return false };
        let at = |of| value_at(of, &error.field_path);
        let always = error.rule.contains("oldSelf") || self.pointing.contains(&error.rule);
        !always && at(new).is_some() && at(new) == at(old)
    }
}

/// The value at a path such as `spec.items[2].name`.
fn value_at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let parts = path.split(['.', '[']).filter(|part| !part.is_empty());
    parts.into_iter().try_fold(object, |value, part| match part.strip_suffix(']') {
        Some(index) => index.parse::<usize>().map_or_else(|_| value.get(index), |index| value.get(index)),
        None => value.get(part),
    })
}

fn kind_of(error: &ValidationError) -> FaultKind {
    match error.reason.as_deref() {
        Some("FieldValueRequired") => FaultKind::Required,
        Some("FieldValueForbidden") => FaultKind::Forbidden,
        Some("FieldValueDuplicate") => FaultKind::Duplicate,
        _ => FaultKind::Invalid,
    }
}

fn shown(error: &ValidationError) -> String {
    match error.kind {
        ErrorKind::ValidationFailure => error.message.clone(),
        _ => format!("rule {:?} cannot be evaluated: {}", error.rule, error.message),
    }
}

/// Checks the rules of a definition's schema themselves.
pub(crate) fn check(path: &Path<'_>, schema: &Value, faults: &mut Faults) {
    each(path, schema, &mut |path, rules| {
        let rules_path = path.field(RULES);
        for (index, rule) in rules.iter().enumerate() {
            check_one(&rules_path.index(index), rule, faults);
        }
    });
}

/// The places whose rules cannot be compiled, and thus are not enforced.
pub(crate) fn unenforced(schema: &Value) -> Vec<String> {
    let mut places = Vec::new();
    each(&Path::Root, schema, &mut |path, rules| {
        let mut faults = Faults::default();
        rules.iter().for_each(|rule| check_one(path, rule, &mut faults));
        if !faults.is_empty() {
            let place = path.to_string();
            places.push(if place.is_empty() { ".".to_owned() } else { place });
        }
    });
    places
}

fn check_one(path: &Path<'_>, rule: &Value, faults: &mut Faults) {
    let expression = rule["rule"].as_str().unwrap_or_default();
    if expression.trim().is_empty() {
        faults.required(&path.field("rule"), "rule is not specified");
        return;
    }
    for (field, expression) in
        [("rule", Some(expression)), ("messageExpression", rule["messageExpression"].as_str())]
    {
        let Some(expression) = expression else { continue };
        if let Err(problem) = compile(expression) {
            faults.invalid(&path.field(field), expression, format!("compilation failed: {problem}"));
        }
    }
    if rule["message"].as_str().is_some_and(|message| message.contains(['\n', '\r'])) {
        faults.invalid(
            &path.field("message"),
            rule["message"].clone(),
            "message must not contain line breaks",
        );
    }
    let reasons = ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];
    if let Some(reason) = rule["reason"].as_str()
        && !reasons.contains(&reason)
    {
        faults.not_supported(&path.field("reason"), reason, &reasons.map(Value::from));
    }
}

fn compile(expression: &str) -> Result<(), String> {
    if expression.len() > RULE_BYTES_MAX {
        return Err(format!("it has more than {RULE_BYTES_MAX} bytes"));
    }
    // The parser is not ours either.
    let compiled = catch_unwind(|| Program::compile(expression).map_err(|e| e.to_string()));
    let program = compiled.map_err(|_| "it is not understood".to_owned())??;
    let references = program.references();
    if let Some(name) = MISSING.iter().find(|name| references.has_function(name)) {
        return Err(format!("{name} is not supported by this server yet"));
    }
    match undeclared(&program.expression().expr, &mut Vec::new()) {
        Some(name) => Err(format!("undeclared reference to '{name}' (in container '')")),
        None => Ok(()),
    }
}

/// The first name that is neither of [`NAMES`] nor `declared` by a macro around it.
fn undeclared<'a>(expression: &'a Expr, declared: &mut Vec<&'a str>) -> Option<&'a str> {
    match expression {
        Expr::Unspecified | Expr::Literal(_) => None,
        Expr::Ident(name) => {
            let is_known = NAMES.contains(&name.as_str()) || declared.contains(&name.as_str());
            (!is_known).then_some(name)
        }
        Expr::Select(select) => undeclared(&select.operand.expr, declared),
        Expr::Call(call) => {
            let mut parts = call.target.as_deref().into_iter().chain(&call.args);
            parts.find_map(|part| undeclared(&part.expr, declared))
        }
        Expr::List(list) => list.elements.iter().find_map(|element| undeclared(&element.expr, declared)),
        Expr::Map(map) => map.entries.iter().find_map(|entry| undeclared_in(&entry.expr, declared)),
        Expr::Struct(of) => of.entries.iter().find_map(|entry| undeclared_in(&entry.expr, declared)),
        Expr::Comprehension(of) => {
            let outside = [&of.iter_range, &of.accu_init];
            let found = outside.into_iter().find_map(|part| undeclared(&part.expr, declared));
            let outer = declared.len();
            declared.extend([of.iter_var.as_str(), of.accu_var.as_str()]);
            declared.extend(of.iter_var2.as_deref());
            let inside = [&of.loop_cond, &of.loop_step, &of.result];
            let found =
                found.or_else(|| inside.into_iter().find_map(|part| undeclared(&part.expr, declared)));
            declared.truncate(outer);
            found
        }
    }
}

fn undeclared_in<'a>(entry: &'a EntryExpr, declared: &mut Vec<&'a str>) -> Option<&'a str> {
    match entry {
        EntryExpr::StructField(field) => undeclared(&field.value.expr, declared),
        EntryExpr::MapEntry(pair) => {
            undeclared(&pair.key.expr, declared).or_else(|| undeclared(&pair.value.expr, declared))
        }
    }
}

/// Calls `found` with each place that has rules.
fn each(path: &Path<'_>, schema: &Value, found: &mut impl FnMut(&Path<'_>, &[Value])) {
    if let Some(rules) = schema[RULES].as_array().filter(|rules| !rules.is_empty()) {
        found(path, rules);
    }
    let properties = path.field("properties");
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        each(&properties.key(name), property, found);
    }
    for field in ["additionalProperties", "items"] {
        if schema[field].is_object() {
            each(&path.field(field), &schema[field], found);
        }
    }
}

#[cfg(test)]
mod tests;
