//! Service account tokens: JSON Web Tokens signed with ES256.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Digest as _;

/// A token is refused when it is longer: real ones have about 1 KiB.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Signs and checks tokens.
pub(crate) struct Tokens {
    key: EcdsaKeyPair,
    key_id: String,
    issuer: String,
}

/// What a token says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) aud: Vec<String>,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) nbf: i64,
    pub(crate) iss: String,
    pub(crate) jti: String,
    pub(crate) sub: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) kubernetes: Subject,
}

/// Whom a token speaks for, and what it is bound to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) namespace: String,
    pub(crate) serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Reference>,
}

/// An object by name and uid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) uid: String,
}

/// Why a token is not accepted. Goes to logs and TokenReview, never with the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token is not a signed JSON Web Token of this cluster")]
    Malformed,
    #[error("the token's signature is not by this cluster's key")]
    Signature,
    #[error("the token has expired or is not valid yet")]
    Time,
    #[error("the token is for other audiences: {0:?}")]
    Audience(Vec<String>),
}

impl Tokens {
    /// With the cluster's signing key (P-256, PKCS#8, PEM).
    pub(crate) fn new(key_pem: &str, issuer: String) -> Result<Self, String> {
        let der = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|e| e.to_string())?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_der())
            .map_err(|e| e.to_string())?;
        let key_id = URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(key.public_key().as_ref()));
        Ok(Self { key, key_id, issuer })
    }

    /// The issuer, which is also the audience of this API server.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Signs a token.
    pub(crate) fn sign(&self, claims: &Claims) -> Result<String, String> {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let claims = serde_json::to_vec(claims).map_err(|e| e.to_string())?;
        let signed =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|e| e.to_string())?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Checks signature, times and audiences; answers the claims and the audiences that matched.
    pub(crate) fn verify(
        &self,
        token: &str,
        audiences: &[String],
        now: jiff::Timestamp,
    ) -> Result<(Claims, Vec<String>), TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let part = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| TokenError::Malformed);
        let header: Value = serde_json::from_slice(&part(header)?).map_err(|_| TokenError::Malformed)?;
        if header["alg"] != "ES256" {
            return Err(TokenError::Malformed);
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref())
            .verify(signed.as_bytes(), &part(signature)?)
            .map_err(|_| TokenError::Signature)?;
        let claims: Claims = serde_json::from_slice(&part(claims)?).map_err(|_| TokenError::Malformed)?;
        if claims.iss != self.issuer {
            return Err(TokenError::Malformed);
        }
        if now.as_second() >= claims.exp || now.as_second() < claims.nbf {
            return Err(TokenError::Time);
        }
        let matched: Vec<String> = claims.aud.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if matched.is_empty() {
            return Err(TokenError::Audience(claims.aud));
        }
        Ok((claims, matched))
    }

    /// The public key as a JSON Web Key Set.
    pub(crate) fn key_set(&self) -> Value {
        // An uncompressed point: a tag, then both coordinates of 32 bytes.
        let point = self.key.public_key().as_ref();
        let (x, y) = point.get(1..).unwrap_or_default().split_at(point.len().saturating_sub(1) / 2);
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        let pki = ambit_trust::pki::ClusterPki::in_memory(&[]).unwrap();
        Tokens::new(pki.account_key_pem(), "https://issuer".into()).unwrap()
    }

    fn claims() -> Claims {
        Claims {
            aud: vec!["https://issuer".into(), "istio-ca".into()],
            exp: 2_000,
            iat: 1_000,
            nbf: 1_000,
            iss: "https://issuer".into(),
            jti: "1".into(),
            sub: "system:serviceaccount:a:b".into(),
            kubernetes: Subject {
                namespace: "a".into(),
                serviceaccount: Reference { name: "b".into(), uid: "u".into() },
                pod: None,
                secret: None,
                node: None,
            },
        }
    }

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_signed_token_is_accepted_for_its_audiences_while_it_lasts() {
        let tokens = tokens();
        let token = tokens.sign(&claims()).unwrap();
        let verify = |audience: &str, second| tokens.verify(&token, &[audience.to_owned()], at(second));
        assert_eq!(verify("istio-ca", 1_500).unwrap().1, ["istio-ca"]);
        assert_eq!(verify("istio-ca", 2_000).unwrap_err(), TokenError::Time);
        assert_eq!(verify("istio-ca", 999).unwrap_err(), TokenError::Time);
        assert!(matches!(verify("vault", 1_500).unwrap_err(), TokenError::Audience(_)));
    }

    #[test]
    fn forged_and_malformed_tokens_are_refused() {
        let tokens = tokens();
        let token = tokens.sign(&claims()).unwrap();
        let refused = |token: &str| tokens.verify(token, &["istio-ca".into()], at(1_500)).unwrap_err();
        let other = Tokens::new(
            ambit_trust::pki::ClusterPki::in_memory(&[]).unwrap().account_key_pem(),
            "https://issuer".into(),
        );
        assert_eq!(refused(&other.unwrap().sign(&claims()).unwrap()), TokenError::Signature);
        let parts: Vec<&str> = token.split('.').collect();
        let forged = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&Claims { exp: 9_000, ..claims() }).unwrap());
        assert_eq!(refused(&format!("{}.{forged}.{}", parts[0], parts[2])), TokenError::Signature);
        let unsigned = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        assert_eq!(refused(&format!("{unsigned}.{}.", parts[1])), TokenError::Malformed);
        for junk in ["", ".", "..", "a.b.c", "a.b", &"x".repeat(TOKEN_BYTES_MAX + 1)] {
            assert_eq!(refused(junk), TokenError::Malformed, "{junk:.20}");
        }
    }
}
