//! Nobody gives away by a role or a binding what they may not do themselves.
//! Source: Kubernetes pkg/registry/rbac/{role,clusterrole,rolebinding,clusterrolebinding}/policybased.

use crate::access;
use crate::cluster::Cluster;
use crate::request::{User, text};
use crate::status::{Answer, Failure};
use ambit_access::defaults::GROUP;
use ambit_access::{Kind, Request, Rule, uncovered};
use ambit_schema::ResourceType;
use serde::Deserialize as _;
use serde_json::Value;

/// Rules named in a refusal; more are counted.
const RULES_SHOWN_MAX: usize = 10;

/// Refuses an object that would give away more than `user` has. `old` is the object it replaces, if any.
pub(crate) fn check(
    cluster: &Cluster,
    user: &User,
    kind: &ResourceType,
    (new, old): (&Value, Option<&Value>),
    namespace: &str,
) -> Answer<()> {
    if kind.group != GROUP || user.is_master() {
        return Ok(());
    }
    let name = text(new, "/metadata/name");
    let same = |field: &str| old.is_some_and(|old| old[field] == new[field]);
    let given = match &*kind.kind {
        // Changing labels or owners gives nobody anything.
        "Role" if same("rules") => return Ok(()),
        "ClusterRole" if same("rules") && same("aggregationRule") => return Ok(()),
        "Role" | "ClusterRole" => {
            let of = if kind.kind == "Role" { Kind::Role } else { Kind::ClusterRole };
            if may(cluster, user, "escalate", of, (namespace, name)) {
                return Ok(());
            }
            rules(new)?
        }
        "RoleBinding" | "ClusterRoleBinding" if same("subjects") && same("roleRef") => return Ok(()),
        "RoleBinding" | "ClusterRoleBinding" => {
            let of = if new["roleRef"]["kind"] == "Role" { Kind::Role } else { Kind::ClusterRole };
            let role = text(new, "/roleRef/name");
            if may(cluster, user, "bind", of, (namespace, role)) {
                return Ok(());
            }
            role_rules(cluster, of, (namespace, role))?
        }
        _ => return Ok(()),
    };
    let held = cluster.rbac.read(&cluster.db, |policy| policy.rules_of(user.subject(), namespace).cloned());
    let missing = uncovered(&held, &given);
    if missing.is_empty() { Ok(()) } else { Err(refusal(kind, name, user, &missing)) }
}

/// Whether `user` has a verb on a role, by whatever name the verb gives power over it.
fn may(cluster: &Cluster, user: &User, verb: &str, role: Kind, (namespace, name): (&str, &str)) -> bool {
    let request = Request {
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        resource: role.plural().to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Request::default()
    };
    access::decide(cluster, user, &request).is_ok()
}

/// What a role allows; one that takes up others may come to allow everything.
fn rules(role: &Value) -> Answer<Vec<Rule>> {
    if !role["aggregationRule"].is_null() {
        return Ok(vec![Rule::of("*", &["*"], &["*"]), Rule::of_paths(&["*"], &["*"])]);
    }
    let rules = Option::<Vec<Rule>>::deserialize(&role["rules"]);
    rules.map(Option::unwrap_or_default).map_err(|error| Failure::bad_request(format!("rules: {error}")))
}

fn role_rules(cluster: &Cluster, kind: Kind, (namespace, name): (&str, &str)) -> Answer<Vec<Rule>> {
    let found =
        cluster.rbac.read(&cluster.db, |policy| policy.role(kind, namespace, name).map(<[Rule]>::to_vec));
    found.ok_or_else(|| {
        let type_name = if kind == Kind::Role { "Role" } else { "ClusterRole" };
        Failure::not_found(&cluster.built_in(GROUP, "v1", type_name), name)
    })
}

fn refusal(kind: &ResourceType, name: &str, user: &User, missing: &[Rule]) -> Failure {
    let mut text = format!(
        "{} {name:?} is forbidden: user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:",
        kind.group_resource(),
        user.name,
        user.groups
    );
    for rule in missing.iter().take(RULES_SHOWN_MAX) {
        text += "\n{";
        let fields = [
            ("APIGroups", &rule.api_groups),
            ("Resources", &rule.resources),
            ("ResourceNames", &rule.resource_names),
            ("NonResourceURLs", &rule.non_resource_urls),
            ("Verbs", &rule.verbs),
        ];
        let fields = fields.iter().filter(|(_, values)| !values.is_empty());
        let fields: Vec<String> = fields.map(|(field, values)| format!("{field}:{values:?}")).collect();
        text += &fields.join(", ");
        text += "}";
    }
    if missing.len() > RULES_SHOWN_MAX {
        text += &format!("\nand {} more", missing.len() - RULES_SHOWN_MAX);
    }
    Failure::forbidden(text).about(kind, name)
}
