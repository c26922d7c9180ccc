//! Validation of whole objects: what the type table can say, then what each definition adds.

mod apps;
mod batch;
mod container;
mod core;
mod custom;
mod definition;
mod format;
mod limit_range;
mod metadata;
mod names;
mod network;
mod pod;
mod pod_update;
mod rbac;
mod storage;
mod volume;

pub use metadata::selects;

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use crate::catalog::ResourceType;
use crate::fault::{Faults, FieldFault};
use crate::path::Path;
use crate::schema::{Field, Schema, Shape};
use crate::table::{self, DefinitionId};

/// Checks an object of one definition beyond its fields' types.
type Check = fn(&Value, &Path<'_>, &mut Faults);
/// Checks what may not change between an old object and a new one.
type UpdateCheck = fn(&Value, &Value, &mut Faults);

const CHECKS: &[(&str, Check)] = &[
    ("api.apps.v1.DaemonSetSpec", apps::daemon_set_spec),
    ("api.apps.v1.DeploymentSpec", apps::deployment_spec),
    ("api.apps.v1.ReplicaSetSpec", apps::replica_set_spec),
    ("api.apps.v1.StatefulSetSpec", apps::stateful_set_spec),
    ("api.autoscaling.v2.HorizontalPodAutoscalerSpec", storage::autoscaler_spec),
    ("api.batch.v1.CronJob", batch::cron_job),
    ("api.batch.v1.JobSpec", batch::job_spec),
    ("api.coordination.v1.LeaseSpec", core::lease_spec),
    ("api.core.v1.ConfigMap", core::config_map),
    ("api.core.v1.Container", container::container),
    ("api.core.v1.EndpointSubset", network::endpoint_subset),
    ("api.core.v1.EnvVar", container::env_var),
    ("api.core.v1.Event", core::event),
    ("api.core.v1.HTTPGetAction", container::http_get),
    ("api.core.v1.LimitRangeSpec", limit_range::limit_range_spec),
    ("api.core.v1.LocalObjectReference", core::local_reference),
    ("api.core.v1.Node", core::node),
    ("api.core.v1.PersistentVolumeClaimSpec", storage::claim_spec),
    ("api.core.v1.PersistentVolumeSpec", storage::volume_spec),
    ("api.core.v1.PodSpec", pod::pod_spec),
    ("api.core.v1.PodTemplateSpec", pod::pod_template),
    ("api.core.v1.Probe", container::probe),
    ("api.core.v1.ResourceRequirements", container::resources),
    ("api.core.v1.Secret", core::secret),
    ("api.core.v1.SecurityContext", container::security_context),
    ("api.core.v1.ServiceSpec", network::service_spec),
    ("api.core.v1.TCPSocketAction", container::tcp_socket),
    ("api.core.v1.Toleration", pod::toleration),
    ("api.core.v1.Volume", volume::volume),
    ("api.core.v1.VolumeMount", volume::volume_mount),
    ("api.discovery.v1.EndpointSlice", network::endpoint_slice),
    ("api.networking.v1.IngressSpec", network::ingress_spec),
    ("api.policy.v1.PodDisruptionBudgetSpec", storage::disruption_budget_spec),
    ("api.rbac.v1.AggregationRule", rbac::aggregation),
    ("api.rbac.v1.ClusterRole", rbac::cluster_role),
    ("api.rbac.v1.ClusterRoleBinding", rbac::cluster_role_binding),
    ("api.rbac.v1.Role", rbac::role),
    ("api.rbac.v1.RoleBinding", rbac::role_binding),
    ("api.scheduling.v1.PriorityClass", storage::priority_class),
    ("api.storage.v1.StorageClass", storage::class),
    ("apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition", definition::definition),
    ("apimachinery.pkg.apis.meta.v1.LabelSelector", metadata::label_selector),
];

const UPDATE_CHECKS: &[(&str, UpdateCheck)] = &[
    ("api.apps.v1.DaemonSet", apps::selector_update),
    ("api.apps.v1.Deployment", apps::selector_update),
    ("api.apps.v1.ReplicaSet", apps::selector_update),
    ("api.apps.v1.StatefulSet", apps::stateful_set_update),
    ("api.batch.v1.Job", batch::job_update),
    ("api.core.v1.ConfigMap", core::immutable_data_update),
    ("api.core.v1.Node", core::node_update),
    ("api.core.v1.PersistentVolumeClaim", storage::claim_update),
    ("api.core.v1.Pod", pod_update::pod_update),
    ("api.core.v1.Secret", core::secret_update),
    ("api.core.v1.Service", network::service_update),
    ("api.discovery.v1.EndpointSlice", network::endpoint_slice_update),
    ("api.rbac.v1.ClusterRoleBinding", rbac::binding_update),
    ("api.rbac.v1.RoleBinding", rbac::binding_update),
    ("api.scheduling.v1.PriorityClass", storage::priority_class_update),
    ("api.storage.v1.StorageClass", storage::class_update),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        definition::definition_update,
    ),
];

fn by_id<F: Copy>(checks: &[(&str, F)]) -> HashMap<DefinitionId, F> {
    let find = |name| table::find(name).unwrap_or_else(|| panic!("the type table has no {name}"));
    checks.iter().map(|(name, check)| (find(name), *check)).collect()
}

impl ResourceType {
    /// What is wrong with a new object. Its status is not looked at: nobody but the server's own parts write it.
    #[must_use]
    pub fn validate_create(&self, object: &Value) -> Vec<FieldFault> {
        let mut faults = Faults::default();
        metadata::object_metadata(self, object, &mut faults);
        self.validate_content(object, &mut faults);
        self.validate_rules(object, None, &mut faults);
        faults.into_vec()
    }

    /// What is wrong with an object that replaces another, whatever part of it was written. Of built-in kinds the
    /// status is not looked at; of custom ones it is.
    #[must_use]
    pub fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldFault> {
        static BY_ID: LazyLock<HashMap<DefinitionId, UpdateCheck>> = LazyLock::new(|| by_id(UPDATE_CHECKS));
        let mut faults = Faults::default();
        metadata::object_metadata(self, new, &mut faults);
        metadata::metadata_update(new, old, &mut faults);
        self.validate_content(new, &mut faults);
        if let Shape::Definition(id) = self.schema.shape
            && let Some(check) = BY_ID.get(&id)
        {
            check(new, old, &mut faults);
        }
        self.validate_rules(new, Some(old), &mut faults);
        faults.into_vec()
    }

    /// Rules are about objects whose fields are right in themselves.
    fn validate_rules(&self, new: &Value, old: Option<&Value>, faults: &mut Faults) {
        if let Some(custom) = self.custom.as_ref().filter(|_| faults.is_empty()) {
            custom.rules.check(custom.published(), (old, new), faults);
        }
    }

    fn validate_content(&self, object: &Value, faults: &mut Faults) {
        if self.is_custom() {
            custom::root(&self.schema, object, faults);
        } else {
            walk(&Path::Root, &self.schema, object, faults);
        }
    }
}

fn walk(path: &Path<'_>, schema: &Schema, value: &Value, faults: &mut Faults) {
    static BY_ID: LazyLock<HashMap<DefinitionId, Check>> = LazyLock::new(|| by_id(CHECKS));
    match (&schema.resolve().shape, value) {
        (Shape::Object(fields), Value::Object(_)) => {
            for field in fields {
                // The status, and metadata, which has its own checks.
                if matches!(path, Path::Root) && matches!(field.name.as_ref(), "status" | "metadata") {
                    continue;
                }
                walk_field(&path.field(&field.name), field, &value[field.name.as_ref()], faults);
            }
            if let Shape::Definition(id) = schema.shape
                && let Some(check) = BY_ID.get(&id)
            {
                check(value, path, faults);
            }
        }
        (Shape::Map(of), Value::Object(map)) => {
            map.iter().for_each(|(key, value)| walk(&path.key(key), of, value, faults));
        }
        (Shape::List(of), Value::Array(items)) => {
            items.iter().enumerate().for_each(|(index, item)| walk(&path.index(index), of, item, faults));
        }
        _ => {}
    }
}

fn walk_field(path: &Path<'_>, field: &Field, value: &Value, faults: &mut Faults) {
    if field.required && !field.lenient && is_missing(&field.schema, value) {
        faults.required(path, "");
        return;
    }
    if value.is_string() && !field.schema.enumeration.is_empty() && !field.schema.enumeration.contains(value)
    {
        faults.not_supported(path, value.clone(), &field.schema.enumeration);
    }
    walk(path, &field.schema, value, faults);
}

/// Numbers and truth values that are missing read as zero and false, so only the others can be required.
fn is_missing(schema: &Schema, value: &Value) -> bool {
    match &schema.resolve().shape {
        Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime => {
            value.as_str().is_none_or(str::is_empty)
        }
        Shape::List(_) => value.as_array().is_none_or(Vec::is_empty),
        Shape::Object(_) | Shape::Map(_) | Shape::IntOrString | Shape::Quantity => value.is_null(),
        _ => false,
    }
}

/// The text of a field, empty when missing.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// The items of a list field, with their indexes.
fn items<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    object[field].as_array().into_iter().flatten().enumerate()
}

#[cfg(test)]
mod tests;
