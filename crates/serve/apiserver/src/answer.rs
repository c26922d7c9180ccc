//! Answers: objects, lists, tables and failures, and how they become HTTP responses.

use crate::negotiate::{Encoding, Form, PROTOBUF};
use crate::object::{Object, encode};
use crate::request::Call;
use crate::status::{Answer, Failure};
use ambit_schema::{ResourceType, encode_protobuf};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

/// Why a response body broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a response.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Warnings sent with one answer at most.
const WARNINGS_MAX: usize = 20;

/// A body that is complete.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A response of one media type.
pub(crate) fn response(
    code: StatusCode,
    media_type: &'static str,
    bytes: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// A value that has only one form, in the encoding the client wants.
pub(crate) fn plain(call: &Call, code: StatusCode, value: &Value) -> Answer<Response<Body>> {
    let encoding = crate::negotiate::encoding(call.header(header::ACCEPT))?;
    encoded(code, encoding, encode(value))
}

/// JSON text in the encoding the client wants.
pub(crate) fn encoded(code: StatusCode, encoding: Encoding, json: Bytes) -> Answer<Response<Body>> {
    match encoding {
        Encoding::Json => Ok(response(code, "application/json", json)),
        Encoding::Yaml => {
            let value: Value = serde_json::from_slice(&json).map_err(|e| Failure::internal(e.to_string()))?;
            let yaml = serde_saphyr::to_string(&value).map_err(|e| Failure::internal(e.to_string()))?;
            Ok(response(code, "application/yaml", yaml))
        }
        Encoding::Protobuf => {
            let value: Value = serde_json::from_slice(&json).map_err(|e| Failure::internal(e.to_string()))?;
            let bytes = encode_protobuf(&value);
            Ok(response(
                code,
                PROTOBUF,
                bytes.ok_or_else(|| Failure::internal("the object has no protobuf form"))?,
            ))
        }
    }
}

/// A failure as a response.
pub(crate) fn failure(failure: &Failure) -> Response<Body> {
    let mut response = response(failure.code, "application/json", encode(&failure.status()));
    if let Some(seconds) = failure.retry_after_seconds() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds `Warning` headers, which kubectl prints.
pub(crate) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings.iter().take(WARNINGS_MAX) {
        let text: String = warning.chars().filter(|c| !c.is_control()).collect();
        let quoted = format!("299 - \"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&quoted) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// Which part of an object the rows of a table carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowObject {
    None,
    Metadata,
    Whole,
}

impl RowObject {
    /// Reads the `includeObject` parameter.
    pub(crate) fn parse(text: Option<&str>) -> Answer<Self> {
        match text {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Whole),
            Some(other) => {
                Err(Failure::bad_request(format!("includeObject {other:?} is not None, Metadata or Object")))
            }
        }
    }
}

/// A way of showing objects of one kind.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) form: Form,
    pub(crate) encoding: Encoding,
    pub(crate) rows: RowObject,
    pub(crate) now: jiff::Timestamp,
}

impl View {
    /// The view of a kind that a client asks for.
    pub(crate) fn of(call: &Call, kind: &ResourceType, now: jiff::Timestamp) -> Answer<Self> {
        let (form, encoding) = crate::negotiate::objects(call.header(header::ACCEPT), !kind.is_custom())?;
        let rows = RowObject::parse(call.query.value("includeObject"))?;
        Ok(Self { form, encoding, rows, now })
    }

    /// A stored object.
    pub(crate) fn object(&self, kind: &ResourceType, object: &Object) -> Bytes {
        match self.form {
            Form::Whole => object.json_as(kind),
            _ => self.value(kind, &object.value_as(kind)),
        }
    }

    /// An object in the version of its kind.
    pub(crate) fn value(&self, kind: &ResourceType, value: &Value) -> Bytes {
        match self.form {
            Form::Whole => encode(value),
            Form::Metadata(version) => encode(&metadata_of(value, version)),
            Form::Table(version) => {
                let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                encode(&table(version, &metadata, Some(kind), vec![self.row(kind, value, version)]))
            }
        }
    }

    /// One row of a table.
    pub(crate) fn row(&self, kind: &ResourceType, value: &Value, version: &str) -> Value {
        let mut row = json!({"cells": kind.cells(value, self.now)});
        match self.rows {
            RowObject::None => {}
            RowObject::Metadata => row["object"] = metadata_of(value, version),
            RowObject::Whole => row["object"] = value.clone(),
        }
        row
    }
}

/// The metadata of an object, as an object of its own.
pub(crate) fn metadata_of(value: &Value, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": value["metadata"],
    })
}

/// A table; without `columns_of` it has rows only.
pub(crate) fn table(
    version: &str,
    metadata: &Value,
    columns_of: Option<&ResourceType>,
    rows: Vec<Value>,
) -> Value {
    let column = |c: &ambit_schema::Column| {
        json!({"name": c.name, "type": c.type_, "format": c.format, "description": c.description,
               "priority": c.priority})
    };
    let columns = columns_of.map(|kind| kind.columns().iter().map(column).collect::<Vec<_>>());
    json!({
        "kind": "Table",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": metadata,
        "columnDefinitions": columns.unwrap_or_default(),
        "rows": rows,
    })
}
