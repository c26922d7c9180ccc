//! Waiting for a kind that the server does not know (yet).

use crate::definitions::Definition;
use std::time::Duration;

/// Longest delay between looks for a kind that may come without a sign.
const LOOK_DELAY_MAX: Duration = Duration::from_secs(2);
/// Delay between looks for a kind whose definition would be told: it may still come from an aggregated server.
const TOLD_DELAY: Duration = Duration::from_secs(60);
/// Looks after a sign before it counts as settled: a definition is served a while after it has been accepted, and by
/// each API server in its own time. With growing delays this takes some seven seconds.
const SETTLE_LOOKS: u32 = 8;

/// What brings a kind back.
pub(super) struct Absence {
    definition: Option<Definition>,
    settling: u32,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// The definition has changed.
    Told,
    /// Time has passed.
    Silence,
}

impl Absence {
    pub(super) fn new(definition: Option<Definition>) -> Self {
        Self { definition, settling: 0 }
    }

    /// Waits until it is worth looking again, for about `delay` if nothing better is known.
    pub(super) async fn wait(&mut self, delay: Duration) -> Sign {
        let delay = delay.min(LOOK_DELAY_MAX);
        let Some(definition) = &mut self.definition else {
            tokio::time::sleep(delay).await;
            return Sign::Silence;
        };
        definition.need();
        let settled = self.settling == 0 && definition.is_followed();
        self.settling = self.settling.saturating_sub(1);
        tokio::select! {
            () = definition.changed() => {
                self.settling = SETTLE_LOOKS;
                Sign::Told
            }
            () = tokio::time::sleep(if settled { TOLD_DELAY } else { delay }) => Sign::Silence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definitions::Definitions;
    use ambit_api::core::v1::ConfigMap;
    use kube::api::DynamicObject;
    use kube::core::GroupVersionKind;
    use kube::discovery::ApiResource;
    use serde_json::json;
    use std::sync::Arc;

    /// Shorter than the time after which a kind is looked for without a sign.
    const PATIENCE: Duration = Duration::from_secs(30);
    const DELAY: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_definition_that_is_followed_ends_the_wait_and_others_do_not() {
        let definitions = Arc::new(Definitions::new());
        let kind =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("test", "v1", "Gadget"), "gadgets");
        let mut absence = Absence::new(definitions.of::<DynamicObject>(&kind));
        // Nobody follows the definitions yet.
        assert_eq!(absence.wait(DELAY).await, Sign::Silence);
        let writer = definitions.writer();
        writer.mark_synced();
        for (name, revision) in [("others.test", "1"), ("gadgets.test", "2")] {
            let object = json!({"metadata": {"name": name, "uid": name, "resourceVersion": revision}});
            writer.apply(serde_json::from_value(object).expect("metadata"));
        }
        let waited = tokio::time::timeout(PATIENCE, absence.wait(DELAY)).await;
        assert_eq!(waited.expect("the sign ends the wait"), Sign::Told);
        // Then it is looked for a few times, as serving begins later.
        for _ in 0..SETTLE_LOOKS {
            assert_eq!(absence.wait(DELAY).await, Sign::Silence);
        }
        let slow = async { tokio::join!(absence.wait(DELAY), async { writer.delete(&key("gadgets.test")) }) };
        let (sign, ()) = tokio::time::timeout(PATIENCE, slow).await.expect("the sign ends the wait");
        assert_eq!(sign, Sign::Told);
    }

    #[tokio::test]
    async fn kinds_without_a_definition_and_servers_that_tell_nothing_are_looked_at_now_and_then() {
        let definitions = Arc::new(Definitions::new());
        assert!(definitions.of::<ConfigMap>(&()).is_none());
        let mut built_in = Absence::new(None);
        assert_eq!(built_in.wait(DELAY).await, Sign::Silence);
        let kind =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("test", "v1", "Gadget"), "gadgets");
        let mut absence = Absence::new(definitions.of::<DynamicObject>(&kind));
        let writer = definitions.writer();
        writer.mark_synced();
        for trouble in [true, false] {
            // Definitions that cannot be read, or are not known themselves.
            writer.set_trouble(trouble.then(|| "denied".to_owned()));
            writer.set_absent(!trouble);
            let waited = tokio::time::timeout(PATIENCE, absence.wait(DELAY)).await;
            assert_eq!(waited.expect("it is looked for"), Sign::Silence);
        }
    }

    fn key(name: &str) -> crate::ObjectKey {
        crate::ObjectKey::cluster(name)
    }
}
