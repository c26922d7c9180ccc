//! What is done for one pod: its enrollment, its release, and the comparison of what is with what should be.
//!
//! Each function gets what is known of the pod and returns what is known afterwards; nothing here is shared.

use crate::annotate::annotate;
use crate::capture::{self, blocking};
use crate::discovery::{Finder, Found};
use crate::error::with_causes;
use crate::handover::{HandOver, Handed};
use crate::headroom::Headroom;
use crate::pod_set::PodSet;
use crate::status::Board;
use crate::{Error, Settings, Uncaptured};
use ambit_api::core::v1::{Namespace, Pod};
use ambit_cni_conf::{Answer, Event};
use ambit_kube::{Informer, ObjectKey};
use ambit_linux::netns::NetNs;
use ambit_names::redirection;
use ambit_node_plan::enroll::state::{self, Outcome};
use ambit_node_plan::enroll::{self, Decision, Known, Policy, Reason, Redirection, Step};
use ambit_runtime::Readiness;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Api;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time for a pod and its namespace to appear in the watch after the runtime has begun to start the pod: it has
/// learned of the pod from the same API server.
const APPEARANCE_DEADLINE: Duration = Duration::from_secs(2);

/// Time for the API server to confirm that a namespace is not labelled.
const CONFIRMATION_DEADLINE: Duration = Duration::from_secs(2);

/// Pods taken up at once at the start: replacing rules makes the kernel wait, and the waits of many pods overlap.
const RESTORED_AT_ONCE: usize = 16;

/// Who asks for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Our plugin, which leaves the decision to the agent.
    Own,
    /// The field's plugin, which has decided already.
    Foreign,
}

/// What is known of an enrolled pod.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) uid: String,
    pub(crate) netns: Arc<NetNs>,
    /// Addresses that the node's probes may reach.
    pub(crate) addresses: Vec<IpAddr>,
    /// Whether a proxy has acknowledged it.
    pub(crate) handed_over: bool,
    /// The runtime's id of its sandbox; none when an earlier agent captured it.
    pub(crate) sandbox: Option<String>,
}

/// Everything that work on a pod needs.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: kube::Client,
    pub(crate) pods: Informer<Pod>,
    pub(crate) namespaces: Informer<Namespace>,
    /// Changes with every change of a pod or namespace.
    pub(crate) changes: watch::Receiver<u64>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) finder: Finder,
    pub(crate) handover: HandOver,
    pub(crate) probes: PodSet,
    /// Addresses of pods that are kept off the network; none where pods are let be until they are captured.
    pub(crate) quarantine: Option<PodSet>,
    pub(crate) board: Board,
    pub(crate) headroom: Headroom,
}

/// The policy that the settings describe.
pub(crate) fn policy_of(settings: &Settings) -> Policy {
    use ambit_rules::pod::{Dns, Families};
    Policy {
        system_namespace: settings.system_namespace.clone(),
        excluded_namespaces: settings.excluded_namespaces.iter().cloned().collect(),
        selectors: settings.selectors.clone(),
        dns: if settings.dns_capture { Dns::Captured } else { Dns::Untouched },
        families: if settings.ipv6 { Families::Dual } else { Families::V4 },
    }
}

/// Name, namespace and UID of a pod, for messages and writes.
struct Identity {
    key: String,
    namespace: String,
    name: String,
    uid: String,
    /// The one in the names of its processes' control groups.
    runtime_uid: String,
}

impl Identity {
    fn of(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let (namespace, name) =
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        Self {
            key: format!("{namespace}/{name}"),
            namespace,
            name,
            uid: meta.uid.clone().unwrap_or_default(),
            runtime_uid: enroll::runtime_uid(pod).to_owned(),
        }
    }
}

impl Context {
    /// Decides about a pod with what the watch shows now.
    fn decide(&self, pod: &Pod) -> Decision {
        let namespace = pod.metadata.namespace.as_deref().and_then(|name| self.namespaces.get(None, name));
        enroll::decide(pod, namespace.as_deref(), &self.policy)
    }

    /// A pod whose network was just made. Returns what is known of it and the answer for the plugin.
    pub(crate) async fn start(
        &self,
        event: &Event,
        asker: Asker,
        entry: Option<Entry>,
    ) -> (Option<Entry>, Result<Answer, Error>) {
        let (pod, decision) = match self.appear(event).await {
            Ok(appeared) => appeared,
            Err(error) => return (entry, Err(error)),
        };
        let decision = self.confirm(&pod, decision).await;
        let identity = Identity::of(&pod);
        match decision {
            Decision::Unknown => (entry, Err(Error::NamespaceUnknown { pod: identity.key })),
            Decision::LeaveAlone(reason) if asker == Asker::Foreign => {
                (entry, Err(Error::NotEligible { pod: identity.key, reason: reason.to_string() }))
            }
            Decision::LeaveAlone(reason) => {
                (entry, Ok(Answer { captured: false, reason: reason.to_string() }))
            }
            Decision::Capture(reason) => {
                let entry = self.forget_namesake(&identity, entry).await;
                match self.open(&identity, event) {
                    Ok(place) => {
                        let (entry, outcome) = self.enroll(&pod, place, entry).await;
                        let sandbox = Some(event.container_id.clone()).filter(|id| !id.is_empty());
                        let entry = entry.map(|entry| Entry { sandbox, ..entry });
                        (entry, outcome.map(|()| Answer { captured: true, reason: reason.to_string() }))
                    }
                    Err(error) => (entry, Err(error)),
                }
            }
        }
    }

    /// Whether what was done at the pod's start still holds: it is known, in the namespace that the runtime names, its
    /// rules are there and a proxy has it. Nothing is repaired: the runtime decides what to do.
    pub(crate) async fn check(&self, event: &Event, entry: Option<&Entry>) -> Result<(), Error> {
        let (pod, decision) = self.appear(event).await?;
        if !matches!(decision, Decision::Capture(_)) {
            return Ok(());
        }
        let identity = Identity::of(&pod);
        let not =
            |problem: &str| Error::NotCaptured { pod: identity.key.clone(), problem: problem.to_owned() };
        let entry =
            entry.filter(|entry| entry.uid == identity.uid).ok_or_else(|| not("it is not enrolled"))?;
        let (named, _) = self.open(&identity, event)?;
        if named.id() != entry.netns.id() {
            return Err(not("another network namespace was enrolled for it"));
        }
        let (capture, _) = enroll::capture_of(&pod, &self.policy);
        let key = identity.key.clone();
        blocking("checking packet rules", move || capture::verify(&key, &named, &capture)).await?;
        if entry.handed_over { Ok(()) } else { Err(not("no node proxy has taken it over")) }
    }

    /// Waits until the watch shows the event's pod and its namespace.
    async fn appear(&self, event: &Event) -> Result<(Arc<Pod>, Decision), Error> {
        let mut changes = self.changes.clone();
        let known = || {
            let pod = self.pods.get(Some(&event.pod_namespace), &event.pod_name)?;
            (event.pod_uid.is_empty() || event.pod_uid == enroll::runtime_uid(&pod)).then_some(pod)
        };
        let shown = async {
            loop {
                changes.borrow_and_update();
                if let Some(pod) = known() {
                    let decision = self.decide(&pod);
                    if decision != Decision::Unknown {
                        return Some((pod, decision));
                    }
                }
                changes.changed().await.ok()?;
            }
        };
        if let Ok(Some(appeared)) = tokio::time::timeout(APPEARANCE_DEADLINE, shown).await {
            return Ok(appeared);
        }
        let pod = format!("{}/{}", event.pod_namespace, event.pod_name);
        Err(if known().is_some() { Error::NamespaceUnknown { pod } } else { Error::PodUnknown { pod } })
    }

    /// Asks the API server itself before a pod is let go because of what its namespace does not say: the watch of
    /// namespaces may be behind that of pods. Without an answer the watch is believed.
    async fn confirm(&self, pod: &Pod, decision: Decision) -> Decision {
        let (Decision::LeaveAlone(Reason::NotLabelled | Reason::NotSelected), Some(name)) =
            (decision, &pod.metadata.namespace)
        else {
            return decision;
        };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        match tokio::time::timeout(CONFIRMATION_DEADLINE, namespaces.get(name)).await {
            Ok(Ok(namespace)) => enroll::decide(pod, Some(&namespace), &self.policy),
            Ok(Err(error)) => {
                tracing::warn!(namespace = %name, %error, "could not confirm a namespace's label");
                decision
            }
            Err(_) => {
                tracing::warn!(namespace = %name, "could not confirm a namespace's label in time");
                decision
            }
        }
    }

    /// The namespace and addresses that the event names.
    fn open(&self, identity: &Identity, event: &Event) -> Result<(Arc<NetNs>, Vec<IpAddr>), Error> {
        let addresses: Vec<IpAddr> = event.ips.iter().map(ambit_cni_conf::event::Ip::address).collect();
        if addresses.is_empty() {
            return Err(Error::NoAddress { pod: identity.key.clone() });
        }
        self.headroom.check()?;
        let netns = self
            .finder
            .open(Path::new(&event.netns))
            .map_err(Error::kernel(format!("open the namespace of pod {}", identity.key)))?;
        if netns.id() == self.finder.node() {
            return Err(Error::NotThePods { pod: identity.key.clone(), addresses });
        }
        Ok((Arc::new(netns), addresses))
    }

    /// Puts rules in place, hands over, lets probes through and annotates, in this order. A pod that the proxy has not
    /// taken is annotated as pending: its rules hold its traffic back.
    async fn enroll(
        &self,
        pod: &Pod,
        (netns, addresses): (Arc<NetNs>, Vec<IpAddr>),
        before: Option<Entry>,
    ) -> (Option<Entry>, Result<(), Error>) {
        let identity = &Identity::of(pod);
        let (capture, faults) = enroll::capture_of(pod, &self.policy);
        for fault in faults {
            tracing::warn!(pod = %identity.key, %fault, "ignored an annotation");
        }
        let work = {
            let (key, netns, addresses) = (identity.key.clone(), netns.clone(), addresses.clone());
            move || capture::put_in_place(&key, &netns, &addresses, &capture)
        };
        if let Err(error) = blocking("putting packet rules in place", work).await {
            return (before, Err(error));
        }
        let mut entry = Entry {
            uid: identity.uid.clone(),
            netns: netns.clone(),
            addresses: addresses.clone(),
            handed_over: false,
            sandbox: before.as_ref().and_then(|entry| entry.sandbox.clone()),
        };
        let handed = handed(pod, identity, netns);
        if let Err(error) = self.handover.add(&identity.uid, handed).await {
            self.annotate_pending(pod, identity).await;
            return (Some(entry), Err(error));
        }
        entry.handed_over = true;
        if let Err(error) = self.probes.set(&identity.uid, &addresses).await {
            return (Some(entry), Err(error));
        }
        let annotated = match enroll::redirection(pod) {
            Redirection::Enabled => Ok(()),
            _ => self.annotate(identity, Some(redirection::ENABLED)).await,
        };
        if annotated.is_ok() {
            tracing::info!(pod = %identity.key, netns = %entry.netns.id(), "captured a pod");
        }
        (Some(entry), annotated)
    }

    async fn annotate(&self, identity: &Identity, value: Option<&str>) -> Result<(), Error> {
        annotate(&self.client, (&identity.namespace, &identity.name, &identity.uid), value).await
    }

    async fn annotate_pending(&self, pod: &Pod, identity: &Identity) {
        if enroll::redirection(pod) == Redirection::Pending {
            return;
        }
        // The failed hand-over is what is reported; the annotation follows with the next attempt.
        if let Err(error) = self.annotate(identity, Some(redirection::PENDING)).await {
            tracing::warn!(pod = %identity.key, error = %with_causes(&error), "could not annotate a pod as pending");
        }
    }

    /// Makes what is true of a pod what the API server says. Returns what is known of it afterwards.
    pub(crate) async fn reconcile(
        &self,
        key: &ObjectKey,
        entry: Option<Entry>,
    ) -> (Option<Entry>, Result<(), Error>) {
        let Some(pod) = self.pods.by_key(key) else {
            let Some(entry) = entry else { return (None, Ok(())) };
            return self.forget(key, entry).await;
        };
        let identity = Identity::of(&pod);
        let entry = self.forget_namesake(&identity, entry).await;
        let known = entry.as_ref().map(|e| Known { addresses: &e.addresses, handed_over: e.handed_over });
        match enroll::plan(&pod, self.decide(&pod), known) {
            Step::Rest => (entry, Ok(())),
            Step::Enroll => {
                let addresses = enroll::addresses(&pod);
                match self.find(&identity, &addresses, entry.as_ref()).await {
                    Ok(netns) => self.enroll(&pod, (netns, addresses), entry).await,
                    Err(error) => (entry, Err(error)),
                }
            }
            Step::Release(reason) => {
                let (entry, outcome) = self.release(&pod, entry).await;
                if outcome.is_ok() {
                    tracing::info!(pod = %identity.key, %reason, "released a pod");
                }
                (entry, outcome)
            }
        }
    }

    /// Pods that are to be captured and were not when the agent before this one ended, with their addresses.
    fn uncaptured(&self) -> Vec<(String, Vec<IpAddr>)> {
        let pods = self.pods.list().into_iter().filter(|pod| {
            state::is_kept_off(self.decide(pod), None) && enroll::redirection(pod) != Redirection::Enabled
        });
        pods.map(|pod| (Identity::of(&pod).uid, enroll::addresses(&pod))).collect()
    }

    /// Keeps a pod with these addresses off the network; none lets it use the network.
    async fn keep_off(&self, uid: &str, addresses: &[IpAddr]) -> Result<(), Error> {
        match &self.quarantine {
            Some(quarantine) => quarantine.set(uid, addresses).await,
            None => Ok(()),
        }
    }

    /// Shows what came of the last work on a pod, and keeps it off the network while it should be captured and is not.
    pub(crate) async fn settle(
        &self,
        key: &ObjectKey,
        entry: Option<&Entry>,
        problem: Option<&Error>,
    ) -> Result<(), Error> {
        let Some(pod) = self.pods.by_key(key) else {
            return match self.board.forget(key) {
                Some(uid) => self.keep_off(&uid, &[]).await,
                None => Ok(()),
            };
        };
        let (uid, decision, addresses) = (Identity::of(&pod).uid, self.decide(&pod), enroll::addresses(&pod));
        let handed_over = entry.map(|entry| entry.handed_over);
        // Work that had nothing to do does not make the cause of an earlier failure untrue.
        let problem = problem
            .map(|error| with_causes(error))
            .or_else(|| self.board.why_pending(key, &uid).filter(|_| handed_over == Some(false)));
        let outcome =
            Outcome { has_address: !addresses.is_empty(), handed_over, problem: problem.as_deref() };
        let kept_off = self.quarantine.is_some() && state::is_kept_off(decision, handed_over);
        let earlier = self.board.note(key, &pod, state::describe(decision, outcome), kept_off);
        if let Some(earlier) = earlier {
            self.keep_off(&earlier, &[]).await?;
        }
        self.keep_off(&uid, if kept_off { &addresses } else { &[] }).await
    }

    /// The namespace of a running pod: the known one if it is still the pod's, else that of its oldest process.
    async fn find(
        &self,
        identity: &Identity,
        addresses: &[IpAddr],
        entry: Option<&Entry>,
    ) -> Result<Arc<NetNs>, Error> {
        let (finder, key, uid) = (self.finder.clone(), identity.key.clone(), identity.runtime_uid.clone());
        let (known, addresses) = (entry.map(|entry| entry.netns.clone()), addresses.to_vec());
        let headroom = self.headroom.clone();
        blocking("looking for the pod's namespace", move || {
            match known.filter(|netns| capture::is_of(netns, &addresses)) {
                Some(netns) => Ok(netns),
                None => {
                    headroom.check()?;
                    Ok(Arc::new(finder.find(&key, &uid, &addresses)?))
                }
            }
        })
        .await
    }

    /// Undoes an enrollment: probes, rules and routes, hand-over, annotation. On failure the pod stays known.
    pub(crate) async fn release(
        &self,
        pod: &Pod,
        entry: Option<Entry>,
    ) -> (Option<Entry>, Result<(), Error>) {
        let outcome = self.try_release(pod, entry.as_ref()).await;
        (entry.filter(|_| outcome.is_err()), outcome)
    }

    async fn try_release(&self, pod: &Pod, entry: Option<&Entry>) -> Result<(), Error> {
        self.undo(pod, entry).await?;
        self.annotate(&Identity::of(pod), None).await
    }

    /// The release by an agent that is removed: the API server may not listen to it any more, and nobody is misled by an
    /// annotation for long who finds nobody behind it.
    pub(crate) async fn release_for_good(&self, pod: &Pod, entry: Option<&Entry>) -> Result<(), Error> {
        self.undo(pod, entry).await?;
        let identity = Identity::of(pod);
        if let Err(error) = self.annotate(&identity, None).await {
            tracing::warn!(pod = %identity.key, error = %with_causes(&error), "a released pod stays annotated");
        }
        Ok(())
    }

    /// Undoes an enrollment on the node: probes, rules and routes, hand-over.
    async fn undo(&self, pod: &Pod, entry: Option<&Entry>) -> Result<(), Error> {
        let identity = Identity::of(pod);
        let addresses = enroll::addresses(pod);
        self.probes.set(&identity.uid, &[]).await?;
        let netns = match entry {
            Some(entry) => Some(entry.netns.clone()),
            // A pod that has ended, or has no network, has nothing that could be undone.
            None if addresses.is_empty() || has_ended(pod) => None,
            None => Some(self.find(&identity, &addresses, None).await?),
        };
        if let Some(netns) = netns {
            let key = identity.key.clone();
            blocking("removing packet rules", move || capture::remove(&key, &netns)).await?;
        }
        self.handover.remove(&identity.uid).await
    }

    /// A pod that is gone: its namespace goes with it.
    pub(crate) async fn forget(&self, key: &ObjectKey, entry: Entry) -> (Option<Entry>, Result<(), Error>) {
        let undone = async {
            self.probes.set(&entry.uid, &[]).await?;
            self.handover.remove(&entry.uid).await
        };
        match undone.await {
            Ok(()) => {
                tracing::info!(pod = %key, "forgot a deleted pod");
                (None, Ok(()))
            }
            Err(error) => (Some(entry), Err(error)),
        }
    }

    /// Forgets what is known of an earlier pod of the same name.
    async fn forget_namesake(&self, identity: &Identity, entry: Option<Entry>) -> Option<Entry> {
        let earlier = entry.as_ref().is_some_and(|entry| entry.uid != identity.uid);
        match entry {
            Some(entry) if earlier => {
                let key = ObjectKey::namespaced(&identity.namespace, &identity.name);
                // Should the probe set fail, its entry is replaced when the address is used again.
                if let (_, Err(error)) = self.forget(&key, entry).await {
                    tracing::warn!(pod = %identity.key, error = %with_causes(&error), "could not forget an earlier pod");
                }
                None
            }
            entry => entry,
        }
    }

    /// Keeps pods that are to be captured off the network if told so, before anything else is done about them, and
    /// takes up what an earlier agent left.
    pub(crate) async fn take_up(
        &mut self,
        host: &NetNs,
        uncaptured: Uncaptured,
        readiness: &Readiness,
    ) -> Result<Vec<(ObjectKey, Entry)>, Error> {
        if uncaptured == Uncaptured::KeptOff {
            let families = self.policy.families;
            self.quarantine = Some(PodSet::install_quarantine(host, families, self.uncaptured())?);
        } else {
            PodSet::remove_quarantine(host)?;
        }
        self.restore(readiness).await
    }

    /// Takes up what an earlier agent left: pods that are annotated as captured. Their rules are applied anew; those
    /// whose namespace is not found now are kept for the proxy and looked for again later. Readiness names those that it
    /// waits for.
    async fn restore(&self, readiness: &Readiness) -> Result<Vec<(ObjectKey, Entry)>, Error> {
        let finder = self.finder.clone();
        let found = blocking("looking for the pods of this node", move || finder.scan()).await?;
        let captured = self.pods.list().into_iter().filter(|pod| {
            matches!(self.decide(pod), Decision::Capture(_))
                && enroll::redirection(pod) == Redirection::Enabled
        });
        let restoring = captured.map(|pod| {
            let found = found.clone();
            async move {
                let identity = Identity::of(&pod);
                let _waited_for = readiness.block(format!("pod {}", identity.key));
                match self.restore_one(&pod, &identity, found).await {
                    Ok(entry) => Ok(Some((ObjectKey::of(&*pod), entry))),
                    Err(error) => {
                        let error = with_causes(&error);
                        tracing::warn!(pod = %identity.key, %error, "could not take up a captured pod yet");
                        self.keep_off(&identity.uid, &enroll::addresses(&pod)).await?;
                        self.handover.restore(&identity.uid, None).await.map(|()| None)
                    }
                }
            }
        });
        let restored: Vec<Option<_>> =
            stream::iter(restoring).buffer_unordered(RESTORED_AT_ONCE).try_collect().await?;
        Ok(restored.into_iter().flatten().collect())
    }

    async fn restore_one(&self, pod: &Pod, identity: &Identity, found: Arc<Found>) -> Result<Entry, Error> {
        let addresses = enroll::addresses(pod);
        let (capture, _) = enroll::capture_of(pod, &self.policy);
        let netns = {
            let (key, uid) = (identity.key.clone(), identity.runtime_uid.clone());
            let addresses = addresses.clone();
            let headroom = self.headroom.clone();
            let work = move || {
                headroom.check()?;
                let netns = found.namespace(&key, &uid, &addresses)?;
                capture::put_in_place(&key, &netns, &addresses, &capture)?;
                Ok(Arc::new(netns))
            };
            blocking("taking up a captured pod", work).await?
        };
        self.handover.restore(&identity.uid, Some(handed(pod, identity, netns.clone()))).await?;
        self.probes.set(&identity.uid, &addresses).await?;
        Ok(Entry { uid: identity.uid.clone(), netns, addresses, handed_over: true, sandbox: None })
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn handed(pod: &Pod, identity: &Identity, netns: Arc<NetNs>) -> Handed {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    Handed {
        name: identity.name.clone(),
        namespace: identity.namespace.clone(),
        // What the API server's admission sets; a pod made without it has no other account.
        service_account: account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned()),
        netns,
    }
}
