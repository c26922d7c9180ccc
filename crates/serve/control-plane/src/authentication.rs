//! Who calls: bearer tokens, checked with the API server.

use ambit_api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tracing::{debug, warn};

/// Time the API server has to review a token.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Reviews in flight at once, so that a burst of reconnecting proxies does not flood the API server.
const REVIEWS_MAX: usize = 64;
/// Longest token that is passed on. Bytes; a service-account token has about 1,200.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// A service account that has proven itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) namespace: String,
    pub(crate) service_account: String,
    /// The pod its token is bound to.
    pub(crate) pod: Option<BoundPod>,
}

/// The pod that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundPod {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Checks callers. Clones share one limit.
#[derive(Clone)]
pub(crate) struct Authenticator {
    reviews: Api<TokenReview>,
    audiences: Vec<String>,
    cluster_id: String,
    limit: Arc<Semaphore>,
}

impl Authenticator {
    pub(crate) fn new(client: kube::Client, audiences: Vec<String>, cluster_id: String) -> Self {
        let limit = Arc::new(Semaphore::new(REVIEWS_MAX));
        Self { reviews: Api::all(client), audiences, cluster_id, limit }
    }

    /// Who sent a request with these headers.
    ///
    /// Callers learn only that they were refused; the log says why.
    pub(crate) async fn authenticate(&self, headers: &MetadataMap) -> Result<Caller, Status> {
        let refuse = |why: &str| {
            debug!(why, "refused a caller");
            Status::unauthenticated("authentication failed")
        };
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let cluster = text("clusterid").unwrap_or_default();
        if !cluster.is_empty() && cluster != self.cluster_id {
            return Err(refuse("it names another cluster, whose tokens cannot be checked here"));
        }
        let token = text("authorization")
            .and_then(|value| value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")))
            .filter(|token| token.len() <= TOKEN_BYTES_MAX)
            .ok_or_else(|| refuse("it has no bearer token"))?;
        let status = self.review(token).await?;
        caller(&status, &self.audiences).map_err(refuse)
    }

    async fn review(&self, token: &str) -> Result<TokenReviewStatus, Status> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec { audiences: Some(self.audiences.clone()), token: Some(token.to_owned()) },
            status: None,
        };
        let unavailable = || Status::unavailable("the token cannot be checked now");
        let _permit = self.limit.acquire().await.map_err(|_| unavailable())?;
        let params = PostParams::default();
        match tokio::time::timeout(REVIEW_TIMEOUT, self.reviews.create(&params, &review)).await {
            Ok(Ok(reviewed)) => Ok(reviewed.status.unwrap_or_default()),
            Ok(Err(error)) => {
                warn!(error = &error as &dyn std::error::Error, "cannot review a token");
                Err(unavailable())
            }
            Err(_) => {
                warn!(timeout = ?REVIEW_TIMEOUT, "the API server did not review a token in time");
                Err(unavailable())
            }
        }
    }
}

/// Reads the outcome of a review.
fn caller(status: &TokenReviewStatus, audiences: &[String]) -> Result<Caller, &'static str> {
    if status.authenticated != Some(true) {
        return Err("its token is not valid");
    }
    // The API says that an answer without one of the wanted audiences is not about them.
    if !status.audiences.iter().flatten().any(|audience| audiences.contains(audience)) {
        return Err("its token is for another audience");
    }
    let user = status.user.clone().unwrap_or_default();
    if !user.groups.iter().flatten().any(|group| group == "system:serviceaccounts") {
        return Err("it is no service account");
    }
    let name = user.username.unwrap_or_default();
    let parts: Vec<&str> = name.split(':').collect();
    let ["system", "serviceaccount", namespace, service_account] = parts[..] else {
        return Err("its name is not one of a service account");
    };
    let extra = user.extra.unwrap_or_default();
    let one = |key: &str| extra.get(key).and_then(|values| values.first()).cloned();
    let pod = one("authentication.kubernetes.io/pod-name")
        .zip(one("authentication.kubernetes.io/pod-uid"))
        .map(|(name, uid)| BoundPod { name, uid });
    Ok(Caller { namespace: namespace.to_owned(), service_account: service_account.to_owned(), pod })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(status: Value, expected: Result<(&str, &str, Option<&str>), &str>) {
        let status: TokenReviewStatus = serde_json::from_value(status).unwrap();
        let caller = caller(&status, &["istio-ca".to_owned()]);
        let actual = caller.as_ref().map(|c| {
            (c.namespace.as_str(), c.service_account.as_str(), c.pod.as_ref().map(|p| p.uid.as_str()))
        });
        assert_eq!(actual.map_err(|e| *e), expected);
    }

    fn user(name: &str) -> Value {
        json!({"username": name, "groups": ["system:serviceaccounts"],
               "extra": {"authentication.kubernetes.io/pod-name": ["p"], "authentication.kubernetes.io/pod-uid": ["u"]}})
    }

    #[test]
    fn only_service_accounts_with_the_right_audience_pass() {
        let name = "system:serviceaccount:istio-system:ztunnel";
        let good = json!({"authenticated": true, "audiences": ["x", "istio-ca"], "user": user(name)});
        check(good.clone(), Ok(("istio-system", "ztunnel", Some("u"))));
        let with = |field: &str, value: Value| {
            let mut status = good.clone();
            status[field] = value;
            status
        };
        check(with("authenticated", json!(false)), Err("its token is not valid"));
        check(with("audiences", json!(["kubernetes"])), Err("its token is for another audience"));
        check(with("audiences", Value::Null), Err("its token is for another audience"));
        check(with("user", json!({"username": name})), Err("it is no service account"));
        let odd = "its name is not one of a service account";
        check(with("user", user("system:serviceaccount:a:b:c")), Err(odd));
        check(with("user", user("system:node:a")), Err(odd));
    }
}
