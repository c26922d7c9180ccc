//! One term as leader: how long it lasts, and clients that write only while it does.

use ambit_runtime::{Clock, Shutdown};
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One term as leader. Clones share it.
#[derive(Clone)]
pub struct Term {
    inner: Arc<Inner>,
}

struct Inner {
    lease: String,
    /// The work is to end.
    stop: Shutdown,
    /// Nothing may be written any more.
    over: Shutdown,
    /// Until when the lease is surely ours, unless it is renewed.
    until: Mutex<Instant>,
}

/// What was to be written came after the end of the term.
#[derive(Debug, thiserror::Error)]
#[error("the lease {lease} is not held any more, so nothing is written: its new holder does the work")]
pub struct LeaseLost {
    lease: String,
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("lease", &self.inner.lease).field("held", &self.is_held()).finish()
    }
}

impl Term {
    pub(crate) fn new(lease: &str, until: Instant, shutdown: &Shutdown) -> Self {
        let (lease, stop, over) = (lease.to_owned(), shutdown.child_token(), Shutdown::new());
        Self { inner: Arc::new(Inner { lease, stop, over, until: Mutex::new(until) }) }
    }

    /// Cancelled when the work is to end: at shutdown, or because the lease is lost.
    pub fn stop(&self) -> &Shutdown {
        &self.inner.stop
    }

    /// Whether the lease is surely held. It also says no when nobody has found out yet that it has run out, as after the
    /// process stood still.
    pub fn is_held(&self) -> bool {
        let until = *self.inner.until.lock().unwrap_or_else(PoisonError::into_inner);
        !self.inner.over.is_cancelled() && Clock.now() < until
    }

    /// A client for the work of this term: what it is to write is refused with [`LeaseLost`] once the lease is not held,
    /// and what it is writing then is broken off. Reads go on.
    ///
    /// A request that has left this process may still be carried out by the server a moment later: no client can call
    /// it back. What must not happen even then needs a precondition (`uid`, `resourceVersion`), which the next leader's
    /// write makes stale.
    pub fn client(&self, client: Client) -> Client {
        let (term, namespace) = (self.clone(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (term, client) = (term.clone(), client.clone());
            async move { term.send(&client, request).await }
        });
        Client::new(service, namespace)
    }

    async fn send(
        &self,
        client: &Client,
        request: Request<Body>,
    ) -> Result<http::Response<Body>, tower::BoxError> {
        if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            return Ok(client.send(request).await?);
        }
        let lost = || LeaseLost { lease: self.inner.lease.clone() };
        if !self.is_held() {
            return Err(lost().into());
        }
        // Both arms may be dropped: a request that is given up is answered with the loss.
        tokio::select! {
            answer = client.send(request) => Ok(answer?),
            () = self.inner.over.cancelled() => Err(lost().into()),
        }
    }

    pub(super) fn renewed(&self, until: Instant) {
        *self.inner.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// The lease is lost: writes end at once, the work soon.
    pub(super) fn end(&self) {
        self.inner.over.cancel();
        self.inner.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use kube::api::{Api, DeleteParams};
    use std::error::Error as _;
    use std::time::Duration;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(3600);

    type Map = ambit_api::core::v1::ConfigMap;

    fn maps(term: &Term, answers: bool) -> Api<Map> {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            Ok::<_, tower::BoxError>(Response::new(Body::from(br#"{"metadata":{"name":"a"}}"#.to_vec())))
        });
        Api::namespaced(term.client(Client::new(service, "default")), "default")
    }

    async fn delete(api: &Api<Map>) -> Result<(), String> {
        let answer = api.delete("a", &DeleteParams::default()).await.map(drop);
        answer.map_err(|error| error.source().map(ToString::to_string).unwrap_or_default())
    }

    #[tokio::test]
    async fn writes_end_with_the_term_and_reads_go_on() {
        let term = Term::new("l", Clock.now() + LONG, &Shutdown::new());
        let api = maps(&term, true);
        assert_eq!(delete(&api).await, Ok(()));
        term.stop().cancel();
        assert_eq!(delete(&api).await, Ok(()), "what the work writes while it ends is in its term");
        term.end();
        assert!(delete(&api).await.unwrap_err().contains("the lease l is not held any more"));
        api.get("a").await.expect("reads go on");
    }

    #[tokio::test]
    async fn time_alone_ends_a_term() {
        let term = Term::new("l", Clock.now(), &Shutdown::new());
        assert!(!term.is_held() && !term.stop().is_cancelled());
        assert!(delete(&maps(&term, true)).await.unwrap_err().contains("is not held"));
        term.renewed(Clock.now() + LONG);
        assert_eq!(delete(&maps(&term, true)).await, Ok(()));
    }

    #[tokio::test]
    async fn a_write_without_an_answer_is_broken_off() {
        let term = Term::new("l", Clock.now() + LONG, &Shutdown::new());
        let api = maps(&term, false);
        let mut writing = std::pin::pin!(delete(&api));
        assert!(futures::poll!(&mut writing).is_pending());
        term.end();
        assert!(writing.await.unwrap_err().contains("is not held"));
    }
}
