//! The files of configMap, secret, projected and downwardAPI volumes.

use super::environment::{Facts, SourceError, field_value, resource_value};
use ambit_api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, EnvFromSource, KeyToPath, Pod, Secret, Volume,
};
use std::collections::{BTreeMap, BTreeSet};

/// Mode of files whose volume states none. Source: the API's `defaultMode`.
const MODE_DEFAULT: i32 = 0o644;
/// Lifetime of a projected token that states none, in seconds. Source: the API's `expirationSeconds`.
const TOKEN_SECONDS_DEFAULT: i64 = 3600;

/// A token a volume asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenWish {
    /// For whom; empty for the API server.
    pub audience: String,
    /// For how long, in seconds.
    pub seconds: i64,
}

/// What a pod's volumes and variables refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    /// Names of ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Names of Secrets.
    pub secrets: BTreeSet<String>,
    /// Tokens of the pod's service account.
    pub tokens: BTreeSet<TokenWish>,
}

/// The objects referred to, as far as they exist.
#[derive(Debug, Clone, Default)]
pub struct Materials {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Secret>,
    /// Tokens by wish.
    pub tokens: BTreeMap<TokenWish, String>,
}

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Path in the volume.
    pub path: String,
    /// Contents.
    pub contents: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// What the volumes refer to.
pub fn volume_references<'a>(volumes: impl IntoIterator<Item = &'a Volume>) -> References {
    let mut references = References::default();
    for volume in volumes {
        references.config_maps.extend(volume.config_map.iter().map(|c| c.name.clone()));
        references.secrets.extend(volume.secret.iter().filter_map(|s| s.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            references.config_maps.extend(source.config_map.iter().map(|c| c.name.clone()));
            references.secrets.extend(source.secret.iter().map(|s| s.name.clone()));
            references.tokens.extend(source.service_account_token.iter().map(token_wish));
        }
    }
    references
}

/// What a container's variables refer to.
pub fn variable_references(container: &Container) -> References {
    let mut references = References::default();
    for from in container.env_from.iter().flatten() {
        references.config_maps.extend(from.config_map_ref.iter().map(|c| c.name.clone()));
        references.secrets.extend(from.secret_ref.iter().map(|s| s.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
        references.config_maps.extend(source.config_map_key_ref.iter().map(|c| c.name.clone()));
        references.secrets.extend(source.secret_key_ref.iter().map(|s| s.name.clone()));
    }
    references
}

fn token_wish(source: &ambit_api::core::v1::ServiceAccountTokenProjection) -> TokenWish {
    TokenWish {
        audience: source.audience.clone().unwrap_or_default(),
        seconds: source.expiration_seconds.unwrap_or(TOKEN_SECONDS_DEFAULT),
    }
}

/// The files of a volume; `None` for kinds that are not made of files.
///
/// # Errors
/// Something that is not optional is missing, or a path leads out of the volume.
pub fn volume_files(
    pod: &Pod,
    volume: &Volume,
    materials: &Materials,
    facts: &Facts,
) -> Result<Option<Vec<VolumeFile>>, SourceError> {
    let mut files = Vec::new();
    if let Some(source) = &volume.config_map {
        let wish = Wish::new(&source.name, source.optional, source.items.as_deref(), source.default_mode);
        files.extend(materials.config_map_files(&wish)?);
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let wish = Wish::new(name, source.optional, source.items.as_deref(), source.default_mode);
        files.extend(materials.secret_files(&wish)?);
    } else if let Some(source) = &volume.downward_api {
        for item in source.items.iter().flatten() {
            files.push(downward_file(pod, item, source.default_mode, facts)?);
        }
    } else if let Some(projected) = &volume.projected {
        let mode = projected.default_mode;
        for source in projected.sources.iter().flatten() {
            if let Some(s) = &source.config_map {
                let wish = Wish::new(&s.name, s.optional, s.items.as_deref(), mode);
                files.extend(materials.config_map_files(&wish)?);
            }
            if let Some(s) = &source.secret {
                let wish = Wish::new(&s.name, s.optional, s.items.as_deref(), mode);
                files.extend(materials.secret_files(&wish)?);
            }
            for item in source.downward_api.iter().flat_map(|d| d.items.iter().flatten()) {
                files.push(downward_file(pod, item, mode, facts)?);
            }
            if let Some(s) = &source.service_account_token {
                let wish = token_wish(s);
                let token = materials.tokens.get(&wish).ok_or(SourceError::Token(wish.audience))?;
                files.push(file(&s.path, token.clone().into_bytes(), None, mode)?);
            }
        }
    } else {
        return Ok(None);
    }
    Ok(Some(files))
}

/// Which keys of which object become files.
struct Wish<'a> {
    name: &'a str,
    optional: bool,
    items: Option<&'a [KeyToPath]>,
    mode: Option<i32>,
}

impl<'a> Wish<'a> {
    fn new(name: &'a str, optional: Option<bool>, items: Option<&'a [KeyToPath]>, mode: Option<i32>) -> Self {
        Self { name, optional: optional.unwrap_or(false), items, mode }
    }

    /// The chosen keys of `data`, or all.
    fn files(
        &self,
        kind: &'static str,
        data: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Vec<VolumeFile>, SourceError> {
        let Some(items) = self.items.filter(|items| !items.is_empty()) else {
            return data.iter().map(|(key, value)| file(key, value.clone(), None, self.mode)).collect();
        };
        let mut files = Vec::new();
        for item in items {
            match data.get(&item.key) {
                Some(value) => files.push(file(&item.path, value.clone(), item.mode, self.mode)?),
                None if self.optional => {}
                None => return Err(missing_key(kind, self.name, &item.key)),
            }
        }
        Ok(files)
    }
}

fn missing_key(kind: &'static str, name: &str, key: &str) -> SourceError {
    SourceError::MissingKey { kind, name: name.to_owned(), key: key.to_owned() }
}

fn config_map_data(object: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = object.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    text.chain(binary).collect()
}

fn secret_data(object: &Secret) -> BTreeMap<String, Vec<u8>> {
    object.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect()
}

impl Materials {
    fn config_map(
        &self,
        name: &str,
        optional: bool,
    ) -> Result<Option<BTreeMap<String, Vec<u8>>>, SourceError> {
        match self.config_maps.get(name) {
            Some(object) => Ok(Some(config_map_data(object))),
            None if optional => Ok(None),
            None => Err(SourceError::Missing { kind: "configmap", name: name.to_owned() }),
        }
    }

    fn secret(&self, name: &str, optional: bool) -> Result<Option<BTreeMap<String, Vec<u8>>>, SourceError> {
        match self.secrets.get(name) {
            Some(object) => Ok(Some(secret_data(object))),
            None if optional => Ok(None),
            None => Err(SourceError::Missing { kind: "secret", name: name.to_owned() }),
        }
    }

    fn config_map_files(&self, wish: &Wish<'_>) -> Result<Vec<VolumeFile>, SourceError> {
        let data = self.config_map(wish.name, wish.optional)?;
        data.map_or(Ok(Vec::new()), |data| wish.files("ConfigMap", &data))
    }

    fn secret_files(&self, wish: &Wish<'_>) -> Result<Vec<VolumeFile>, SourceError> {
        let data = self.secret(wish.name, wish.optional)?;
        data.map_or(Ok(Vec::new()), |data| wish.files("Secret", &data))
    }

    /// One value of a ConfigMap as a variable.
    pub(crate) fn config_map_key(
        &self,
        name: &str,
        key: &str,
        optional: bool,
    ) -> Result<Option<String>, SourceError> {
        pick(self.config_map(name, optional)?, key, optional, || missing_key("ConfigMap", name, key))
    }

    /// One value of a Secret as a variable.
    pub(crate) fn secret_key(
        &self,
        name: &str,
        key: &str,
        optional: bool,
    ) -> Result<Option<String>, SourceError> {
        pick(self.secret(name, optional)?, key, optional, || missing_key("Secret", name, key))
    }

    /// All values that an `envFrom` entry names.
    pub(crate) fn whole(&self, from: &EnvFromSource) -> Result<Vec<(String, String)>, SourceError> {
        let mut all = BTreeMap::new();
        if let Some(source) = &from.config_map_ref {
            all.extend(self.config_map(&source.name, source.optional.unwrap_or(false))?.unwrap_or_default());
        }
        if let Some(source) = &from.secret_ref {
            all.extend(self.secret(&source.name, source.optional.unwrap_or(false))?.unwrap_or_default());
        }
        Ok(all.into_iter().map(|(k, v)| (k, String::from_utf8_lossy(&v).into_owned())).collect())
    }
}

fn pick(
    data: Option<BTreeMap<String, Vec<u8>>>,
    key: &str,
    optional: bool,
    missing: impl Fn() -> SourceError,
) -> Result<Option<String>, SourceError> {
    match data.and_then(|mut data| data.remove(key)) {
        Some(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
        None if optional => Ok(None),
        None => Err(missing()),
    }
}

fn downward_file(
    pod: &Pod,
    item: &DownwardAPIVolumeFile,
    default_mode: Option<i32>,
    facts: &Facts,
) -> Result<VolumeFile, SourceError> {
    let contents = match (&item.field_ref, &item.resource_field_ref) {
        (Some(field), _) => field_value(pod, &field.field_path, facts)?,
        (None, Some(resource)) => resource_value(pod, None, resource, facts)?,
        (None, None) => return Err(SourceError::Field(item.path.clone())),
    };
    file(&item.path, contents.into_bytes(), item.mode, default_mode)
}

fn file(
    path: &str,
    contents: Vec<u8>,
    mode: Option<i32>,
    default_mode: Option<i32>,
) -> Result<VolumeFile, SourceError> {
    let parts: Vec<_> = path.split('/').collect();
    if parts.iter().any(|part| matches!(*part, "" | "." | "..")) || path.starts_with("..") {
        return Err(SourceError::Path(path.to_owned()));
    }
    let mode = mode.or(default_mode).unwrap_or(MODE_DEFAULT);
    Ok(VolumeFile { path: path.to_owned(), contents, mode: mode.unsigned_abs() & 0o777 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn materials() -> Materials {
        let mut materials = Materials::default();
        let config = json!({ "data": { "a": "1", "b": "2" }, "binaryData": { "c": "/w==" } });
        materials.config_maps.insert("conf".into(), serde_json::from_value(config).unwrap());
        materials
            .secrets
            .insert("sec".into(), serde_json::from_value(json!({ "data": { "k": "djE=" } })).unwrap());
        materials.tokens.insert(TokenWish { audience: "istio-ca".into(), seconds: 600 }, "jwt".into());
        materials
    }

    type Files<'a> = Option<&'a [(&'a str, &'a [u8], u32)]>;

    #[track_caller]
    fn check(volume: Value, expected: Result<Files<'_>, &str>) {
        let pod: Pod =
            serde_json::from_value(json!({ "metadata": { "name": "web", "namespace": "demo" } })).unwrap();
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let files = volume_files(&pod, &volume, &materials(), &Facts::default()).map_err(|e| e.to_string());
        let expected = expected.map_err(str::to_owned).map(|files| {
            files.map(|files| {
                let file = |(path, contents, mode): &(&str, &[u8], u32)| VolumeFile {
                    path: (*path).into(),
                    contents: contents.to_vec(),
                    mode: *mode,
                };
                files.iter().map(file).collect::<Vec<_>>()
            })
        });
        assert_eq!(files, expected);
    }

    #[test]
    fn config_maps_and_secrets() {
        check(
            json!({ "name": "v", "configMap": { "name": "conf" } }),
            Ok(Some(&[("a", b"1", 0o644), ("b", b"2", 0o644), ("c", b"\xff", 0o644)])),
        );
        check(
            json!({ "name": "v", "configMap": { "name": "conf", "defaultMode": 0o400,
                "items": [{ "key": "a", "path": "x/y" }, { "key": "b", "path": "z", "mode": 0o600 }] } }),
            Ok(Some(&[("x/y", b"1", 0o400), ("z", b"2", 0o600)])),
        );
        check(json!({ "name": "v", "secret": { "secretName": "sec" } }), Ok(Some(&[("k", b"v1", 0o644)])));
        check(json!({ "name": "v", "secret": { "secretName": "none" } }), Err("secret \"none\" not found"));
        check(json!({ "name": "v", "secret": { "secretName": "none", "optional": true } }), Ok(Some(&[])));
        check(
            json!({ "name": "v", "configMap": { "name": "conf", "items": [{ "key": "q", "path": "q" }] } }),
            Err("couldn't find key q in ConfigMap \"conf\""),
        );
        check(json!({ "name": "v", "emptyDir": {} }), Ok(None));
    }

    #[test]
    fn paths_stay_in_the_volume() {
        for path in ["../x", "/x", "a/../b", "a//b", "..x", ""] {
            check(
                json!({ "name": "v", "configMap": { "name": "conf", "items": [{ "key": "a", "path": path }] } }),
                Err(&format!("file path {path:?} must be relative and must not contain '..'")),
            );
        }
    }

    #[test]
    fn projections() {
        let token = |seconds: i64| {
            json!({ "name": "v", "projected": { "sources": [
                { "serviceAccountToken": { "audience": "istio-ca", "expirationSeconds": seconds, "path": "token" } },
                { "configMap": { "name": "conf", "items": [{ "key": "a", "path": "ca.crt" }] } },
                { "downwardAPI": { "items": [
                    { "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } } ] } },
            ] } })
        };
        check(
            token(600),
            Ok(Some(&[("token", b"jwt", 0o644), ("ca.crt", b"1", 0o644), ("namespace", b"demo", 0o644)])),
        );
        check(token(601), Err("no token for audience \"istio-ca\""));
        let volume: Volume = serde_json::from_value(token(600)).unwrap();
        let references = volume_references([&volume]);
        assert_eq!(references.config_maps, BTreeSet::from(["conf".to_owned()]));
        assert_eq!(
            references.tokens,
            BTreeSet::from([TokenWish { audience: "istio-ca".into(), seconds: 600 }])
        );
    }
}
