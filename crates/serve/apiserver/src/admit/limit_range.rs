//! LimitRanges: what containers of a namespace are given when they ask for nothing, and what they may ask for.
//! Source: kubernetes plugin/pkg/admission/limitranger.

use super::{forbidden, pod};
use crate::cluster::Cluster;
use crate::request::text;
use crate::status::Answer;
use ambit_schema::{Quantity, ResourceType};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const LIMIT_RANGES: &str = "limitranges";
/// Says what a pod was given.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// The lists of containers that are given defaults, and what the annotation calls their members.
const LISTS: [(&str, &str); 2] = [("containers", "container"), ("initContainers", "init container")];

/// What containers or a whole pod ask for, by resource.
type Amounts = BTreeMap<String, Quantity>;

/// Gives a new pod the defaults of its namespace and holds it to the limits.
pub(super) fn admit_pod(cluster: &Cluster, kind: &ResourceType, value: &mut Value) -> Answer<()> {
    let ranges = ranges(cluster, value);
    let given: Vec<String> = items(&ranges, "Container").flat_map(|item| give(item, value)).collect();
    if !given.is_empty() {
        value["metadata"]["annotations"][ANNOTATION] =
            format!("LimitRanger plugin set: {}", given.join("; ")).into();
    }
    let mut wrong = Vec::new();
    for item in items(&ranges, "Container") {
        for container in LISTS.iter().flat_map(|(list, _)| containers(value, list)) {
            exceeded(item, [&amounts(container, "requests"), &amounts(container, "limits")], &mut wrong);
        }
    }
    for item in items(&ranges, "Pod") {
        exceeded(item, [&of_pod(value, "requests"), &of_pod(value, "limits")], &mut wrong);
    }
    refuse(kind, value, &wrong)
}

/// Holds a new or changed claim to the limits of its namespace.
pub(super) fn check_claim(cluster: &Cluster, kind: &ResourceType, claim: &Value) -> Answer<()> {
    let requests = quantities(&claim["spec"]["resources"]["requests"]);
    let mut wrong = Vec::new();
    for item in items(&ranges(cluster, claim), "PersistentVolumeClaim") {
        for (resource, bound, limit) in bounds(item, "min") {
            at_least(
                ("PersistentVolumeClaim", &resource, &bound, limit),
                [&requests, &Amounts::new()],
                &mut wrong,
            );
        }
        for (resource, bound, limit) in bounds(item, "max") {
            let what = format!("maximum {resource} usage per PersistentVolumeClaim is {bound}");
            match requests.get(&resource) {
                None => wrong.push(format!("{what}.  No request is specified")),
                Some(amount) if *amount > limit => wrong.push(format!("{what}, but request is {amount}")),
                Some(_) => {}
            }
        }
    }
    refuse(kind, claim, &wrong)
}

fn refuse(kind: &ResourceType, value: &Value, wrong: &[String]) -> Answer<()> {
    match wrong {
        [] => Ok(()),
        [one] => Err(forbidden(kind, value, one)),
        several => Err(forbidden(kind, value, &format!("[{}]", several.join(", ")))),
    }
}

fn ranges(cluster: &Cluster, value: &Value) -> Vec<Value> {
    cluster.values(LIMIT_RANGES, Some(text(value, "/metadata/namespace")))
}

fn items<'a>(ranges: &'a [Value], of: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = ranges.iter().filter_map(|range| range["spec"]["limits"].as_array()).flatten();
    all.filter(move |item| item["type"] == of)
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Adds what `amounts` has and the field has not; answers the names that were added.
fn fill(parent: &mut Value, field: &str, amounts: &Map<String, Value>) -> Vec<String> {
    let mut added = Vec::new();
    for (resource, amount) in amounts {
        if parent[field].get(resource).is_none() {
            parent[field][resource] = amount.clone();
            added.push(resource.clone());
        }
    }
    added.sort();
    added
}

/// Gives the containers of a pod the defaults of one item; answers what was given.
fn give(item: &Value, value: &mut Value) -> Vec<String> {
    let mut given = Vec::new();
    for (list, called) in LISTS {
        for container in pod::containers_mut(value, list) {
            let name = text(container, "/name").to_owned();
            let (requests, limits) = (object(&item["defaultRequest"]), object(&item["default"]));
            if requests.is_empty() && limits.is_empty() {
                continue;
            }
            if container["resources"].is_null() {
                container["resources"] = json!({});
            }
            let resources = &mut container["resources"];
            for (field, defaults, what) in [("requests", requests, "request"), ("limits", limits, "limit")] {
                let added = fill(resources, field, &defaults);
                if !added.is_empty() {
                    given.push(format!("{} {what} for {called} {name}", added.join(", ")));
                }
            }
        }
    }
    given
}

fn containers<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    value["spec"].get(list).and_then(Value::as_array).into_iter().flatten()
}

fn quantities(amounts: &Value) -> Amounts {
    let all = amounts.as_object().into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), Quantity::of(amount)?))).collect()
}

fn amounts(container: &Value, what: &str) -> Amounts {
    quantities(&container["resources"][what])
}

/// What a pod asks for at its busiest: all containers at once, or one that prepares beside the sidecars begun before it.
/// Source: kubernetes component-helpers resource.PodRequests.
fn of_pod(value: &Value, what: &str) -> Amounts {
    let add = |sum: &mut Amounts, more: &Amounts| {
        for (resource, amount) in more {
            let sum = sum.entry(resource.clone()).or_default();
            *sum = *sum + *amount;
        }
    };
    let mut running = Amounts::new();
    containers(value, "containers").for_each(|container| add(&mut running, &amounts(container, what)));
    let (mut sidecars, mut preparing) = (Amounts::new(), Vec::new());
    for container in containers(value, "initContainers") {
        let own = amounts(container, what);
        if container["restartPolicy"] == "Always" {
            add(&mut sidecars, &own);
            preparing.push(sidecars.clone());
        } else {
            let mut at_once = sidecars.clone();
            add(&mut at_once, &own);
            preparing.push(at_once);
        }
    }
    add(&mut running, &sidecars);
    for (resource, amount) in preparing.into_iter().flatten() {
        let most = running.entry(resource).or_default();
        *most = (*most).max(amount);
    }
    running
}

/// Each resource that a field of an item bounds, with the bound as written and as an amount.
fn bounds(item: &Value, field: &str) -> Vec<(String, String, Quantity)> {
    let all = item[field].as_object().into_iter().flatten();
    all.filter_map(|(resource, bound)| {
        let amount = Quantity::of(bound)?;
        let written = bound.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        Some((resource.clone(), written, amount))
    })
    .collect()
}

fn at_least(
    (of, resource, bound, least): (&str, &str, &str, Quantity),
    [requests, limits]: [&Amounts; 2],
    wrong: &mut Vec<String>,
) {
    let what = format!("minimum {resource} usage per {of} is {bound}");
    let limit = limits.get(resource).filter(|limit| **limit < least);
    match (requests.get(resource), limit) {
        (None, _) => wrong.push(format!("{what}.  No request is specified")),
        (Some(request), _) if *request < least => wrong.push(format!("{what}, but request is {request}")),
        (_, Some(limit)) => wrong.push(format!("{what}, but limit is {limit}")),
        _ => {}
    }
}

/// Adds what is beyond the bounds of one item to `wrong`.
fn exceeded(item: &Value, [requests, limits]: [&Amounts; 2], wrong: &mut Vec<String>) {
    let of = text(item, "/type");
    for (resource, bound, least) in bounds(item, "min") {
        at_least((of, &resource, &bound, least), [requests, limits], wrong);
    }
    for (resource, bound, most) in bounds(item, "max") {
        let what = format!("maximum {resource} usage per {of} is {bound}");
        let request = requests.get(&resource).filter(|request| **request > most);
        match (limits.get(&resource), request) {
            (None, _) => wrong.push(format!("{what}.  No limit is specified")),
            (Some(limit), _) if *limit > most => wrong.push(format!("{what}, but limit is {limit}")),
            (_, Some(request)) => wrong.push(format!("{what}, but request is {request}")),
            _ => {}
        }
    }
    for (resource, bound, most) in bounds(item, "maxLimitRequestRatio") {
        let what = format!("{resource} max limit to request ratio per {of} is {bound}, but");
        let amount =
            |of: &Amounts| of.get(&resource).copied().filter(|amount| *amount != Quantity::default());
        match (amount(requests), amount(limits)) {
            (None, _) => wrong.push(format!("{what} no request is specified or request is 0")),
            (_, None) => wrong.push(format!("{what} no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let ratio = limit.as_f64() / request.as_f64();
                if ratio > most.as_f64() {
                    wrong.push(format!("{what} provided ratio is {ratio:.6}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
