//! Fetches the objects and tokens that a pod's volumes and variables refer to.

use crate::context::{Context, identity};
use crate::error::Error;
use ambit_api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use ambit_api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use ambit_api::meta::ObjectMeta;
use ambit_node_plan::pod::files::{Materials, References, TokenWish};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, PostParams};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// Deadline of one fetch.
const FETCH_WAIT: Duration = Duration::from_secs(10);
/// A token is replaced after this long even if it would last. Source: kubelet's token manager.
const TOKEN_AGE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// The tokens of one pod, each with the time from which it is to be replaced.
#[derive(Debug, Default)]
pub(super) struct Tokens(BTreeMap<TokenWish, (String, Timestamp)>);

/// Everything `references` names that exists. A token that cannot be replaced stays until it can.
pub(super) async fn fetch(
    context: &Context,
    pod: &Pod,
    references: &References,
    tokens: &mut Tokens,
) -> Result<Materials, Error> {
    let (namespace, ..) = identity(pod);
    let mut materials = Materials::default();
    let config_maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    for name in &references.config_maps {
        let got =
            within(|| format!("read the ConfigMap {namespace}/{name}"), config_maps.get_opt(name)).await?;
        materials.config_maps.extend(got.map(|object| (name.clone(), object)));
    }
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    for name in &references.secrets {
        let got = within(|| format!("read the Secret {namespace}/{name}"), secrets.get_opt(name)).await?;
        materials.secrets.extend(got.map(|object| (name.clone(), object)));
    }
    for wish in &references.tokens {
        let token = token(context, pod, wish, tokens).await?;
        materials.tokens.insert(wish.clone(), token);
    }
    Ok(materials)
}

async fn token(context: &Context, pod: &Pod, wish: &TokenWish, tokens: &mut Tokens) -> Result<String, Error> {
    let now = context.clock.timestamp();
    if let Some((token, replace_at)) = tokens.0.get(wish)
        && now < *replace_at
    {
        return Ok(token.clone());
    }
    match request(context, pod, wish).await {
        Ok(status) => {
            let life = status.expiration_timestamp.0.duration_since(now);
            // Four fifths of its life, at most a day. Source: kubelet's token manager.
            let replace_at = now + (life * 4 / 5).min(TOKEN_AGE_MAX);
            tokens.0.insert(wish.clone(), (status.token.clone(), replace_at));
            Ok(status.token)
        }
        Err(error) => tokens.0.get(wish).map(|(token, _)| token.clone()).ok_or(error),
    }
}

async fn request(
    context: &Context,
    pod: &Pod,
    wish: &TokenWish,
) -> Result<ambit_api::authentication::v1::TokenRequestStatus, Error> {
    let (namespace, name, uid) = identity(pod);
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref());
    let account = account.filter(|name| !name.is_empty()).unwrap_or("default");
    let request = TokenRequest {
        metadata: ObjectMeta::default(),
        spec: TokenRequestSpec {
            audiences: Some(&wish.audience).filter(|a| !a.is_empty()).cloned().into_iter().collect(),
            expiration_seconds: Some(wish.seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(name.to_owned()),
                uid: Some(uid.to_owned()),
            }),
        },
        status: None,
    };
    let attempt = || format!("request a token of the ServiceAccount {namespace}/{account}");
    let api: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
    let params = PostParams::default();
    let answer = within(attempt, api.create_token_request(account, &params, &request)).await?;
    let empty = || kube::Error::Service("the answer has no status".into());
    answer.status.ok_or_else(|| Error::Api { attempt: attempt(), source: Box::new(empty()) })
}

async fn within<T>(
    attempt: impl Fn() -> String,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(FETCH_WAIT, answer).await {
        Ok(answer) => answer.map_err(|source| Error::Api { attempt: attempt(), source: Box::new(source) }),
        Err(_) => Err(Error::ApiDeadline { attempt: attempt(), seconds: FETCH_WAIT.as_secs() }),
    }
}
