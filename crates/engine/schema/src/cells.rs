//! Tables as kubectl shows them: columns and cells per kind. Source: Kubernetes
//! `pkg/printers/internalversion/printers.go`.

mod age;
mod cluster;
mod network;
mod pod;
mod rbac;
mod storage;
mod workloads;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::catalog::ResourceType;

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// The type of its cells: `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: String,
    /// A format of the type; `name` marks the name of the object.
    pub format: String,
    /// What the column shows.
    pub description: String,
    /// 0 for columns always shown, more for those of wide output.
    pub priority: i32,
}

/// How a kind is shown: its columns beside the name (which is first; of Events last, and wide), and the cells that fill them. A column is `Heading`, with `*` in
/// front where only wide output shows it and `#` where it holds numbers.
struct Printer {
    group: &'static str,
    kind: &'static str,
    columns: &'static [&'static str],
    cells: fn(&Value, Timestamp) -> Vec<Value>,
}

const PRINTERS: &[Printer] = &[
    Printer {
        group: "",
        kind: "Pod",
        columns: &[
            "Ready",
            "Status",
            "Restarts",
            "Age",
            "*IP",
            "*Node",
            "*Nominated Node",
            "*Readiness Gates",
        ],
        cells: pod::pod,
    },
    Printer {
        group: "",
        kind: "Service",
        columns: &["Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "*Selector"],
        cells: network::service,
    },
    Printer { group: "", kind: "Endpoints", columns: &["Endpoints", "Age"], cells: network::endpoints },
    Printer {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        columns: &["AddressType", "Ports", "Endpoints", "Age"],
        cells: network::endpoint_slice,
    },
    Printer {
        group: "apps",
        kind: "Deployment",
        columns: &["Ready", "Up-to-date", "Available", "Age", "*Containers", "*Images", "*Selector"],
        cells: workloads::deployment,
    },
    Printer {
        group: "apps",
        kind: "ReplicaSet",
        columns: &["#Desired", "#Current", "#Ready", "Age", "*Containers", "*Images", "*Selector"],
        cells: workloads::replica_set,
    },
    Printer { group: "", kind: "Namespace", columns: &["Status", "Age"], cells: cluster::namespace },
    Printer {
        group: "",
        kind: "Node",
        columns: &[
            "Status",
            "Roles",
            "Age",
            "Version",
            "*Internal-IP",
            "*External-IP",
            "*OS-Image",
            "*Kernel-Version",
            "*Container-Runtime",
        ],
        cells: cluster::node,
    },
    Printer { group: "", kind: "ConfigMap", columns: &["#Data", "Age"], cells: cluster::config_map },
    Printer { group: "", kind: "Secret", columns: &["Type", "#Data", "Age"], cells: cluster::secret },
    Printer {
        group: "",
        kind: "ServiceAccount",
        columns: &["Secrets", "Age"],
        cells: cluster::service_account,
    },
    Printer {
        group: "coordination.k8s.io",
        kind: "Lease",
        columns: &["Holder", "Age"],
        cells: cluster::lease,
    },
    Printer { group: rbac::GROUP, kind: "Role", columns: &["Created At"], cells: cluster::definition },
    Printer { group: rbac::GROUP, kind: "ClusterRole", columns: &["Created At"], cells: cluster::definition },
    Printer { group: rbac::GROUP, kind: "RoleBinding", columns: rbac::BINDING_COLUMNS, cells: rbac::binding },
    Printer {
        group: rbac::GROUP,
        kind: "ClusterRoleBinding",
        columns: rbac::BINDING_COLUMNS,
        cells: rbac::binding,
    },
    Printer { group: "", kind: "Event", columns: cluster::EVENT_COLUMNS, cells: cluster::event },
    Printer { group: "events.k8s.io", kind: "Event", columns: cluster::EVENT_COLUMNS, cells: cluster::event },
    Printer {
        group: "apiextensions.k8s.io",
        kind: "CustomResourceDefinition",
        columns: &["Created At"],
        cells: cluster::definition,
    },
    Printer {
        group: "",
        kind: "PersistentVolume",
        columns: &[
            "Capacity",
            "Access Modes",
            "Reclaim Policy",
            "Status",
            "Claim",
            "StorageClass",
            "VolumeAttributesClass",
            "Reason",
            "Age",
            "*VolumeMode",
        ],
        cells: storage::volume,
    },
    Printer {
        group: "",
        kind: "PersistentVolumeClaim",
        columns: &[
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            "VolumeAttributesClass",
            "Age",
            "*VolumeMode",
        ],
        cells: storage::claim,
    },
    Printer {
        group: "",
        kind: "PodTemplate",
        columns: &["Containers", "Images", "Pod Labels"],
        cells: workloads::pod_template,
    },
    Printer {
        group: "",
        kind: "ReplicationController",
        columns: &["#Desired", "#Current", "#Ready", "Age", "*Containers", "*Images", "*Selector"],
        cells: workloads::replication_controller,
    },
    Printer {
        group: "apps",
        kind: "StatefulSet",
        columns: &["Ready", "Age", "*Containers", "*Images"],
        cells: workloads::stateful_set,
    },
    Printer {
        group: "apps",
        kind: "DaemonSet",
        columns: &[
            "#Desired",
            "#Current",
            "#Ready",
            "#Up-to-date",
            "#Available",
            "Node Selector",
            "Age",
            "*Containers",
            "*Images",
            "*Selector",
        ],
        cells: workloads::daemon_set,
    },
    Printer {
        group: "apps",
        kind: "ControllerRevision",
        columns: &["Controller", "#Revision", "Age"],
        cells: workloads::controller_revision,
    },
    Printer {
        group: "batch",
        kind: "Job",
        columns: &["Status", "Completions", "Duration", "Age", "*Containers", "*Images", "*Selector"],
        cells: workloads::job,
    },
    Printer {
        group: "batch",
        kind: "CronJob",
        columns: &[
            "Schedule",
            "Timezone",
            "Suspend",
            "#Active",
            "Last Schedule",
            "Age",
            "*Containers",
            "*Images",
            "*Selector",
        ],
        cells: workloads::cron_job,
    },
    Printer {
        group: "autoscaling",
        kind: "HorizontalPodAutoscaler",
        columns: &["Reference", "Targets", "MinPods", "#MaxPods", "#Replicas", "Age"],
        cells: workloads::autoscaler,
    },
    Printer {
        group: "networking.k8s.io",
        kind: "Ingress",
        columns: &["Class", "Hosts", "Address", "Ports", "Age"],
        cells: network::ingress,
    },
    Printer {
        group: "networking.k8s.io",
        kind: "IngressClass",
        columns: &["Controller", "Parameters", "Age"],
        cells: network::ingress_class,
    },
    Printer {
        group: "networking.k8s.io",
        kind: "NetworkPolicy",
        columns: &["Pod-Selector", "Age"],
        cells: network::network_policy,
    },
    Printer {
        group: "policy",
        kind: "PodDisruptionBudget",
        columns: &["Min Available", "Max Unavailable", "#Allowed Disruptions", "Age"],
        cells: storage::disruption_budget,
    },
    Printer {
        group: "node.k8s.io",
        kind: "RuntimeClass",
        columns: &["Handler", "Age"],
        cells: storage::runtime_class,
    },
    Printer {
        group: "scheduling.k8s.io",
        kind: "PriorityClass",
        columns: &["#Value", "Global-Default", "Age", "PreemptionPolicy"],
        cells: storage::priority_class,
    },
    Printer {
        group: "storage.k8s.io",
        kind: "StorageClass",
        columns: &["Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"],
        cells: storage::class,
    },
    Printer {
        group: "storage.k8s.io",
        kind: "CSIDriver",
        columns: &[
            "AttachRequired",
            "PodInfoOnMount",
            "StorageCapacity",
            "TokenRequests",
            "RequiresRepublish",
            "Modes",
            "Age",
        ],
        cells: storage::driver,
    },
    Printer { group: "storage.k8s.io", kind: "CSINode", columns: &["#Drivers", "Age"], cells: storage::node },
    Printer {
        group: "storage.k8s.io",
        kind: "VolumeAttachment",
        columns: &["Attacher", "PV", "Node", "Attached", "Age"],
        cells: storage::attachment,
    },
    Printer {
        group: "storage.k8s.io",
        kind: "VolumeAttributesClass",
        columns: &["DriverName", "Age"],
        cells: storage::attributes_class,
    },
    Printer {
        group: "resource.k8s.io",
        kind: "ResourceClaim",
        columns: &["State", "Age"],
        cells: storage::resource_claim,
    },
    Printer {
        group: "resource.k8s.io",
        kind: "ResourceSlice",
        columns: &["Node", "Driver", "Pool", "Age"],
        cells: storage::resource_slice,
    },
];

impl ResourceType {
    /// The columns of a table of such objects.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The cells of an object, one per column.
    #[must_use]
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object["metadata"]["name"].clone();
        if self.kind == "Event" && !self.is_custom() {
            let mut cells = cluster::event(object, now);
            cells.push(name);
            return cells;
        }
        let mut cells = vec![name];
        if let Some(custom) = &self.custom {
            let columns = self.columns.iter().skip(1).zip(&custom.column_paths);
            cells.extend(columns.map(|(column, path)| custom_cell(&column.type_, path.first(object), now)));
            return cells;
        }
        match self.printer() {
            Some(printer) => cells.extend((printer.cells)(object, now)),
            None => cells.push(age_cell(object, now)),
        }
        cells
    }

    fn printer(&self) -> Option<&'static Printer> {
        find_printer(&self.group, &self.kind)
    }
}

fn find_printer(group: &str, kind: &str) -> Option<&'static Printer> {
    PRINTERS.iter().find(|printer| printer.group == group && printer.kind == kind)
}

/// The cell of an additional printer column. Source: apiextensions `pkg/registry/customresource/tableconvertor`.
fn custom_cell(type_: &str, value: Option<&Value>, now: Timestamp) -> Value {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Value::Null };
    match type_ {
        "integer" => match (value.as_i64(), value.as_f64()) {
            (Some(number), _) => number.into(),
            #[expect(clippy::cast_possible_truncation, reason = "the column asked for whole numbers")]
            (None, Some(number)) => (number as i64).into(),
            _ => Value::Null,
        },
        "number" if value.is_number() => value.clone(),
        "boolean" if value.is_boolean() => value.clone(),
        "string" => value.as_str().map_or_else(|| value.to_string(), str::to_owned).into(),
        "date" => value.as_str().map_or(Value::Null, |time| age::since(time, now).into()),
        _ => Value::Null,
    }
}

fn column(name: &str, type_: &str, format: &str, priority: i32) -> Column {
    Column {
        name: name.to_owned(),
        type_: type_.to_owned(),
        format: format.to_owned(),
        description: String::new(),
        priority,
    }
}

pub(crate) fn name_column() -> Column {
    column("Name", "string", "name", 0)
}

pub(crate) fn age_column() -> Column {
    column("Age", "string", "", 0)
}

pub(crate) fn built_in_columns(group: &str, kind: &str) -> Vec<Column> {
    let mut columns = vec![name_column()];
    let Some(printer) = find_printer(group, kind) else {
        columns.push(age_column());
        return columns;
    };
    columns.extend(printer.columns.iter().map(|word| {
        let (word, priority) = word.strip_prefix('*').map_or((*word, 0), |rest| (rest, 1));
        let (word, type_) = word.strip_prefix('#').map_or((word, "string"), |rest| (rest, "integer"));
        column(word, type_, "", priority)
    }));
    if kind == "Event" {
        columns.rotate_left(1);
        if let Some(name) = columns.last_mut() {
            name.priority = 1;
        }
    }
    columns
}

/// How long the object has existed.
fn age_cell(object: &Value, now: Timestamp) -> Value {
    age::since(text(&object["metadata"], "creationTimestamp"), now).into()
}

/// The text of a field, empty when missing.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// The items of a list field.
fn items<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    object[field].as_array().into_iter().flatten()
}

/// The text, or what stands for nothing.
fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

/// The entries of a map.
fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// Labels as a selector shows them.
fn selector_text(labels: &Value) -> String {
    let labels: Vec<_> =
        entries(labels).map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    or_none(&labels.join(",")).to_owned()
}
