//! Scalars, and the messages that JSON shows as scalars or as values of any form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Number, Value};

use super::wire::Raw;
use super::{At, Fault};
use crate::parse::parse_json;
use crate::schema::Shape;

/// Reads a value of the shape. Null stands for one that says nothing, such as a time that was never set.
pub(super) fn read(at: At<'_>, shape: &Shape, raw: Raw<'_>) -> Result<Value, Fault> {
    Ok(match shape {
        Shape::String => text(at, at.bytes(raw)?)?.into(),
        Shape::Bytes => STANDARD.encode(at.bytes(raw)?).into(),
        Shape::Int32 => int32(at, raw)?.into(),
        Shape::Int64 => int64(at, raw)?.into(),
        Shape::Bool => (int64(at, raw)? != 0).into(),
        Shape::Number => double(at, raw)?,
        Shape::Time | Shape::MicroTime => time(at, shape, at.bytes(raw)?)?,
        Shape::Quantity => quantity(at, at.bytes(raw)?)?,
        Shape::IntOrString => int_or_string(at, at.bytes(raw)?)?,
        Shape::Any => embedded(at, at.bytes(raw)?)?,
        Shape::AnyObject => match embedded(at, at.bytes(raw)?)? {
            value @ (Value::Object(_) | Value::Null) => value,
            _ => return Err(at.fault("the JSON inside is not an object")),
        },
        Shape::Object(_) | Shape::Map(_) | Shape::List(_) | Shape::Definition(_) => {
            return Err(at.fault("a type without a protobuf form"));
        }
    })
}

/// The bytes as text.
pub(super) fn text<'a>(at: At<'_>, bytes: &'a [u8]) -> Result<&'a str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| at.fault("text that is not UTF-8"))
}

fn int64(at: At<'_>, raw: Raw<'_>) -> Result<i64, Fault> {
    match raw {
        Raw::Varint(bits) => Ok(bits.cast_signed()),
        _ => Err(at.fault("not a number where one was expected")),
    }
}

fn int32(at: At<'_>, raw: Raw<'_>) -> Result<i32, Fault> {
    i32::try_from(int64(at, raw)?).map_err(|_| at.fault("a number of more than 32 bits"))
}

fn double(at: At<'_>, raw: Raw<'_>) -> Result<Value, Fault> {
    let Raw::Fixed64(bits) = raw else { return Err(at.fault("not a number where one was expected")) };
    let number = f64::from_bits(bits);
    // A whole number is shown without a fraction, as Go does.
    if number.fract() == 0.0 && number.abs() < 9.0e15 {
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 53 bits")]
        return Ok((number as i64).into());
    }
    Number::from_f64(number).map(Value::Number).ok_or_else(|| at.fault("a number that JSON does not have"))
}

/// Seconds 1 and nanoseconds 2; an empty message is no time.
fn time(at: At<'_>, shape: &Shape, bytes: &[u8]) -> Result<Value, Fault> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanoseconds) = (0, 0);
    at.each(bytes, |number, raw| {
        match number {
            1 => seconds = int64(at, raw)?,
            2 => nanoseconds = int32(at, raw)?,
            _ => {}
        }
        Ok(())
    })?;
    // Times of whole seconds never say more. Source: apimachinery pkg/apis/meta/v1/time_proto.go.
    let micro = matches!(shape, Shape::MicroTime);
    let time = Timestamp::new(seconds, if micro { nanoseconds } else { 0 });
    let time = time.map_err(|_| at.fault("a time outside of the calendar"))?;
    Ok(if micro { format!("{time:.6}") } else { format!("{time:.0}") }.into())
}

/// Text 1; an empty text is zero.
fn quantity(at: At<'_>, bytes: &[u8]) -> Result<Value, Fault> {
    let mut quantity = "";
    at.each(bytes, |number, raw| {
        if number == 1 {
            quantity = text(at, at.bytes(raw)?)?;
        }
        Ok(())
    })?;
    Ok(if quantity.is_empty() { "0" } else { quantity }.into())
}

/// Which of the two 1, the number 2 and the text 3.
fn int_or_string(at: At<'_>, bytes: &[u8]) -> Result<Value, Fault> {
    let (mut which, mut whole, mut words) = (0, 0, "");
    at.each(bytes, |number, raw| {
        match number {
            1 => which = int64(at, raw)?,
            2 => whole = int32(at, raw)?,
            3 => words = text(at, at.bytes(raw)?)?,
            _ => {}
        }
        Ok(())
    })?;
    match which {
        0 => Ok(whole.into()),
        1 => Ok(words.into()),
        _ => Err(at.fault("neither a number nor a text")),
    }
}

/// JSON text 1.
fn embedded(at: At<'_>, bytes: &[u8]) -> Result<Value, Fault> {
    let mut json: &[u8] = b"";
    at.each(bytes, |number, raw| {
        if number == 1 {
            json = at.bytes(raw)?;
        }
        Ok(())
    })?;
    if json.is_empty() {
        return Ok(Value::Null);
    }
    let parsed = parse_json(json).map_err(|_| at.fault("the bytes inside are not JSON"))?;
    Ok(parsed.value)
}
