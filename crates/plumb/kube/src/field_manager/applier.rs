//! Writes objects of one kind.

use super::memory::{Known, Place, text};
use super::object_set::ObjectSet;
use super::owned::{configuration, is_in_force, owned_fields};
use super::{FieldManager, OnConflict, Written};
use crate::informer::ObjectKey;
use crate::write_error::{Attempt, Verb, WriteError};
use ambit_runtime::Clock;
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use kube::core::params::GetParams;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Name of the subresource with the status.
const STATUS: &str = "status";

/// Writes objects of one kind in the name of a [`FieldManager`].
///
/// Every write says all that is wanted of the object: what the manager once wrote and does not want any more goes. What it
/// never wrote stays as others made it. Nothing is sent if all is as wanted, which is judged from the object as a view shows
/// it, and from what the manager owns: it is told by the object if it was read with its managers, else remembered, else read
/// once. So a restarted process reads, and does not write.
pub struct Applier<K: Resource> {
    pub(super) manager: FieldManager,
    kind: K::DynamicType,
    /// Path of all objects of the kind.
    path: Arc<str>,
}

impl<K: Resource<DynamicType: Clone>> Clone for Applier<K> {
    fn clone(&self) -> Self {
        Self { manager: self.manager.clone(), kind: self.kind.clone(), path: self.path.clone() }
    }
}

impl<K: Resource> fmt::Debug for Applier<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").field("manager", &self.manager).field("kind", &K::kind(&self.kind)).finish()
    }
}

/// What is to be written where.
struct Job<'a, K> {
    verb: Verb,
    key: ObjectKey,
    configuration: Value,
    live: Option<&'a K>,
    on_conflict: OnConflict,
    /// The set that an object of that name must belong to already, if there is one.
    set: Option<&'a ObjectSet>,
}

impl<K: Resource> Applier<K> {
    pub(super) fn new(manager: FieldManager, kind: K::DynamicType) -> Self {
        let path = K::url_path(&kind, None).into();
        Self { manager, kind, path }
    }
}

impl<K: Resource + Serialize> Applier<K> {
    /// Makes the object, or changes it so that it is as `wanted`, status aside. `live` is the object as a view shows it, if
    /// it does; without it the object is read first.
    ///
    /// # Errors
    /// See [`WriteError`]. An object that is another one than `live` is left alone.
    pub async fn apply(
        &self,
        wanted: &K,
        live: Option<&K>,
        on_conflict: OnConflict,
    ) -> Result<Written, WriteError> {
        self.apply_in(wanted, live, on_conflict, None).await
    }

    pub(super) async fn apply_in(
        &self,
        wanted: &K,
        live: Option<&K>,
        on_conflict: OnConflict,
        set: Option<&ObjectSet>,
    ) -> Result<Written, WriteError> {
        let key = ObjectKey::of(wanted);
        let object = self.to_json(&key, wanted)?;
        let configuration = configuration(object, &K::api_version(&self.kind), &K::kind(&self.kind));
        self.write(Job { verb: Verb::Apply, key, configuration, live, on_conflict, set }).await
    }

    /// Writes the status of `live` so that the manager's part of it is as `wanted`.
    ///
    /// # Errors
    /// See [`WriteError`]. An object that is another one than `live` is left alone.
    pub async fn apply_status(
        &self,
        live: &K,
        wanted: &impl Serialize,
        on_conflict: OnConflict,
    ) -> Result<Written, WriteError> {
        let key = ObjectKey::of(live);
        let status = self.to_json(&key, wanted)?;
        let mut object = json!({"metadata": {"name": key.name}, "status": status});
        if let Some(namespace) = &key.namespace {
            object["metadata"]["namespace"] = namespace.as_str().into();
        }
        let configuration = configuration(object, &K::api_version(&self.kind), &K::kind(&self.kind));
        let job =
            Job { verb: Verb::ApplyStatus, key, configuration, live: Some(live), on_conflict, set: None };
        self.write(job).await
    }

    /// Deletes the object if it is still as `live` shows it. What it owns goes after it. One that is gone is no error.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete(&self, live: &K) -> Result<Written, WriteError> {
        let (key, meta) = (ObjectKey::of(live), live.meta());
        let object = self.named(&key);
        let same = Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
        let params = DeleteParams::background().preconditions(same);
        let request = self.requests(&key).delete(&key.name, &params);
        let what = Attempt { verb: Verb::Delete, object: &object };
        let answer = self.manager.request(&what, built(&what, request)?).await;
        for subresource in [None, Some(STATUS)] {
            self.manager.memory().forget(&self.place(&key, subresource));
        }
        match answer {
            Ok(_) => Ok(Written::Changed),
            Err(WriteError::Gone { .. }) => Ok(Written::Unchanged),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, mut job: Job<'_, K>) -> Result<Written, WriteError> {
        let subresource = (job.verb == Verb::ApplyStatus).then_some(STATUS);
        let place = self.place(&job.key, subresource);
        let object = self.named(&job.key);
        let what = Attempt { verb: job.verb, object: &object };
        if job.key.name.is_empty() {
            return Err(WriteError::Unfit { object, fault: "it has no name".to_owned() });
        }
        let mut hasher = DefaultHasher::new();
        job.configuration.to_string().hash(&mut hasher);
        let wanted = hasher.finish();
        if let Some(meta) = job.live.map(Resource::meta) {
            let version = (meta.uid.as_deref(), meta.resource_version.as_deref());
            if self.manager.memory().is_settled(&place, version, wanted, Clock.now()) {
                return Ok(self.unchanged(job.verb));
            }
        }
        let found = self.find(&job, &place, subresource, &what).await?;
        let before = found.as_ref().and_then(|(live, _)| text(live, "resourceVersion"));
        if let Some((live, owned)) = &found {
            job.configuration["metadata"]["uid"] = live["metadata"]["uid"].clone();
            if is_in_force(owned, &job.configuration, live) {
                self.manager.memory().keep(place, Known::of(live, Some(owned), wanted, before));
                return Ok(self.unchanged(job.verb));
            }
        }
        let answer = self.manager.request(&what, self.to_request(&job, &what)?).await;
        match &answer {
            Ok(live) => {
                let owned = owned_fields(live, self.manager.name(), subresource);
                let changed = before.is_none() || text(live, "resourceVersion") != before;
                self.manager.memory().keep(place, Known::of(live, owned.as_ref(), wanted, before));
                Ok(if changed { Written::Changed } else { Written::Unchanged })
            }
            Err(_) => {
                self.manager.memory().forget(&place);
                answer.map(|_| Written::Unchanged)
            }
        }
    }

    /// The object and what the manager owns of it; none if there is no such object.
    async fn find(
        &self,
        job: &Job<'_, K>,
        place: &Place,
        subresource: Option<&'static str>,
        what: &Attempt<'_>,
    ) -> Result<Option<(Value, Value)>, WriteError> {
        if let Some(live) = job.live {
            let shown = self.to_json(&job.key, live)?;
            self.check_set(job, &shown)?;
            let remembered = || {
                let owned = self.manager.memory().owned(place, live.meta().uid.as_deref())?;
                serde_json::from_str(&owned).ok()
            };
            let owned = owned_fields(&shown, self.manager.name(), subresource).or_else(remembered);
            if let Some(owned) = owned {
                return Ok(Some((shown, owned)));
            }
        }
        let reading = Attempt { verb: Verb::Read, object: what.object };
        let request = self.requests(&job.key).get(&job.key.name, &GetParams::default());
        let read = match self.manager.request(&reading, built(&reading, request)?).await {
            Ok(read) => read,
            Err(WriteError::Gone { .. }) if job.live.is_none() => return Ok(None),
            Err(error) => return Err(error),
        };
        let uid = job.live.map(|live| live.meta().uid.clone());
        if uid.is_some_and(|uid| uid != text(&read, "uid")) {
            let (action, object) = (what.verb.action(), what.object.to_owned());
            return Err(WriteError::Stale { action, object, source: None });
        }
        self.check_set(job, &read)?;
        let owned = owned_fields(&read, self.manager.name(), subresource).unwrap_or_else(|| json!({}));
        Ok(Some((read, owned)))
    }

    /// An object of the wanted name that is not of the set is somebody else's.
    fn check_set(&self, job: &Job<'_, K>, live: &Value) -> Result<(), WriteError> {
        match job.set {
            Some(set) if !set.has(&live["metadata"]) => {
                Err(WriteError::Taken { object: self.named(&job.key), set: set.to_string() })
            }
            _ => Ok(()),
        }
    }

    fn unchanged(&self, verb: Verb) -> Written {
        self.manager.metrics.unchanged(&self.manager.name, verb);
        Written::Unchanged
    }

    fn to_request(&self, job: &Job<'_, K>, what: &Attempt<'_>) -> Result<http::Request<Vec<u8>>, WriteError> {
        let mut params = PatchParams::apply(self.manager.name());
        params.force = job.on_conflict == OnConflict::Force;
        let (requests, name, patch) =
            (self.requests(&job.key), &job.key.name, Patch::Apply(&job.configuration));
        let request = match job.verb {
            Verb::ApplyStatus => requests.patch_subresource(STATUS, name, &params, &patch),
            _ => requests.patch(name, &params, &patch),
        };
        built(what, request)
    }

    fn to_json(&self, key: &ObjectKey, object: &impl Serialize) -> Result<Value, WriteError> {
        serde_json::to_value(object)
            .map_err(|error| WriteError::Unfit { object: self.named(key), fault: error.to_string() })
    }

    /// Makes requests about the objects where this one is.
    fn requests(&self, key: &ObjectKey) -> Request {
        Request::new(K::url_path(&self.kind, key.namespace.as_deref()))
    }

    fn place(&self, key: &ObjectKey, subresource: Option<&'static str>) -> Place {
        Place { path: self.path.clone(), subresource, key: key.clone() }
    }

    /// The object, for people.
    pub(super) fn named(&self, key: &ObjectKey) -> String {
        format!("{} {key}", K::kind(&self.kind))
    }
}

fn built<T>(what: &Attempt<'_>, request: Result<T, kube::core::request::Error>) -> Result<T, WriteError> {
    request.map_err(|error| WriteError::Unfit { object: what.object.to_owned(), fault: error.to_string() })
}
