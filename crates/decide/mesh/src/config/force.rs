//! Which configuration is in force: what the sources say now, or the last that was good.

use crate::config::check::{Checked, check_mesh, check_networks};
use crate::config::layers::{MeshConfig, layer};

/// What a document holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A mesh configuration.
    Mesh,
    /// The networks of a mesh.
    Networks,
}

/// One source's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Name of the source, as faults and origins show it.
    pub source: String,
    /// What it holds.
    pub content: Content,
    /// Its text.
    pub text: Vec<u8>,
}

impl Document {
    /// Checks it.
    pub fn check(&self) -> Checked {
        match self.content {
            Content::Mesh => check_mesh(&self.source, &self.text),
            Content::Networks => check_networks(&self.source, &self.text),
        }
    }
}

/// What is to be in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The configuration; none when there has never been a good one.
    pub config: Option<MeshConfig>,
    /// Faults of the sources as they are now, as `SOURCE:LINE:COLUMN: field.path: what is wrong, what is expected`. The
    /// configuration is the last good one if there are any.
    pub faults: Vec<String>,
    /// What has no effect in the sources as they are now, in the same form.
    pub notes: Vec<String>,
}

/// Decides which configuration is in force. Documents come in the order in which they are layered; a source that is not
/// there sets nothing. INV-03: one fault anywhere keeps all of the last good documents in force.
pub fn decide(current: &[Document], last_good: Option<&[Document]>) -> Decision {
    let checked: Vec<Checked> = current.iter().map(Document::check).collect();
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    for (document, checked) in current.iter().zip(&checked) {
        let source = &document.source;
        faults.extend(checked.faults.iter().map(|fault| format!("{source}:{fault}")));
        notes.extend(checked.notes.iter().map(|note| format!("{source}:{note}")));
    }
    let config = match faults.is_empty() {
        true => Some(layer_mesh(current, &checked)),
        false => last_good.and_then(|documents| {
            let checked: Vec<Checked> = documents.iter().map(Document::check).collect();
            // What was good for another version of the program may not be for this one.
            let good = checked.iter().all(|checked| checked.faults.is_empty());
            good.then(|| layer_mesh(documents, &checked))
        }),
    };
    Decision { config, faults, notes }
}

fn layer_mesh(documents: &[Document], checked: &[Checked]) -> MeshConfig {
    let both = documents.iter().zip(checked);
    layer(both.filter(|(document, _)| document.content == Content::Mesh).map(|(_, checked)| checked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(source: &str, text: &str) -> Document {
        Document { source: source.to_owned(), content: Content::Mesh, text: text.as_bytes().to_vec() }
    }

    #[track_caller]
    fn check(
        current: &[(&str, &str)],
        last_good: Option<&[(&str, &str)]>,
        trust_domain: Option<&str>,
        faults: usize,
    ) {
        let all = |list: &[(&str, &str)]| list.iter().map(|(s, t)| document(s, t)).collect::<Vec<_>>();
        let decision = decide(&all(current), last_good.map(all).as_deref());
        let found = decision.config.as_ref().map(|config| config.trust_domain.as_str());
        assert_eq!((found, decision.faults.len()), (trust_domain, faults), "{:?}", decision.faults);
    }

    #[test]
    fn inv_03_a_bad_source_keeps_all_of_the_last_good_ones_in_force() {
        let (bad, good) = ("trustDomain: true", "trustDomain: good");
        check(&[], None, Some("cluster.local"), 0);
        check(&[("istio", good)], None, Some("good"), 0);
        check(&[("istio", bad)], None, None, 1);
        check(&[("istio", bad)], Some(&[("istio", "trustDomain: old")]), Some("old"), 1);
        check(&[("shared", good), ("istio", "enableTracing: 3")], Some(&[]), Some("cluster.local"), 1);
        check(&[("shared", bad), ("istio", bad)], Some(&[("istio", bad)]), None, 2);
    }

    #[test]
    fn faults_name_their_source() {
        let decision = decide(&[document("istio-system/istio", "a: b\ntrustDomain: 1")], None);
        let expected = "istio-system/istio:2:14: trustDomain: it is the number 1, a text (write it in quotes) is expected";
        assert_eq!(decision.faults, [expected]);
        assert_eq!(decision.notes, ["istio-system/istio:1:1: a: there is no such field, it has no effect"]);
    }
}
