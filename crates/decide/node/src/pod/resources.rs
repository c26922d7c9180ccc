//! Quantities, the quality-of-service class and what the runtime is given for limits.

use ambit_api::Quantity;
use ambit_api::core::v1::{Container, PodSpec};

/// Length of a CPU accounting period in microseconds. Source: kubelet.
const CPU_PERIOD_US: i64 = 100_000;
/// Fewest CPU shares a control group can have.
const CPU_SHARES_MIN: i64 = 2;
/// Smallest CPU quota in microseconds.
const CPU_QUOTA_US_MIN: i64 = 1000;

/// The value of a quantity in thousandths, rounded up; `None` if it is not a quantity.
/// Source: the API's serialisation format of `Quantity`.
pub fn parse_milli(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.trim();
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    // Thousandths of the suffix's unit, as a fraction so that `n` and `u` stay exact.
    let (factor, divisor): (i128, i128) = match suffix {
        "n" => (1, 1_000_000),
        "u" => (1, 1000),
        "m" => (1, 1),
        "" => (1000, 1),
        "k" => (1000 * 1000, 1),
        "M" => (1000 * 1_000_000, 1),
        "G" => (1000 * 1_000_000_000, 1),
        "T" => (1000 * 1_000_000_000_000, 1),
        "P" => (1000 * 1_000_000_000_000_000, 1),
        "E" => (1000 * 1_000_000_000_000_000_000, 1),
        "Ki" => (1000 << 10, 1),
        "Mi" => (1000 << 20, 1),
        "Gi" => (1000 << 30, 1),
        "Ti" => (1000 << 40, 1),
        "Pi" => (1000 << 50, 1),
        "Ei" => (1000 << 60, 1),
        _ => exponent(suffix)?,
    };
    let (digits, scale) = parse_decimal(number)?;
    let scaled = digits.checked_mul(factor)?;
    let below = divisor.checked_mul(scale)?;
    Some(scaled.div_euclid(below) + i128::from(scaled.rem_euclid(below) != 0))
}

/// The value of a quantity, rounded up.
pub fn parse_value(quantity: &Quantity) -> Option<i64> {
    let milli = parse_milli(quantity)?;
    i64::try_from(milli.div_euclid(1000) + i128::from(milli.rem_euclid(1000) != 0)).ok()
}

/// `e3`, `E-2`: a power of ten, in thousandths.
fn exponent(suffix: &str) -> Option<(i128, i128)> {
    let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let ten = 10_i128.checked_pow(power.unsigned_abs())?;
    if power < 0 { Some((1000, ten)) } else { Some((ten.checked_mul(1000)?, 1)) }
}

/// A decimal number as digits and the power of ten they are divided by.
fn parse_decimal(number: &str) -> Option<(i128, i128)> {
    let unsigned = number.strip_prefix(['+', '-']).unwrap_or(number);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: i128 = digits.parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some((if number.starts_with('-') { -value } else { value }, scale))
}

/// `Guaranteed`, `Burstable` or `BestEffort`. Source: the API's documentation of quality-of-service classes.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let amount = |c: &Container, of: Of, name: &str| stated(c, of, name).filter(|milli| *milli != 0);
    let names = ["cpu", "memory"];
    let sets_none = |c: &Container| {
        names.iter().all(|n| amount(c, Of::Requests, n).is_none() && amount(c, Of::Limits, n).is_none())
    };
    if all().all(sets_none) {
        return "BestEffort";
    }
    let is_guaranteed = |c: &Container| {
        names.iter().all(|n| {
            let limit = amount(c, Of::Limits, n);
            limit.is_some() && amount(c, Of::Requests, n).is_none_or(|request| Some(request) == limit)
        })
    };
    if all().all(is_guaranteed) { "Guaranteed" } else { "Burstable" }
}

#[derive(Clone, Copy)]
enum Of {
    Requests,
    Limits,
}

fn stated(container: &Container, of: Of, name: &str) -> Option<i128> {
    let resources = container.resources.as_ref()?;
    let list = match of {
        Of::Requests => resources.requests.as_ref(),
        Of::Limits => resources.limits.as_ref(),
    };
    list?.get(name).and_then(parse_milli)
}

/// What the runtime is given for a container's requests and limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimeResources {
    /// Relative weight of the container's CPU time.
    pub cpu_shares: i64,
    /// CPU accounting period in microseconds; 0 without a limit.
    pub cpu_period_us: i64,
    /// CPU time per period in microseconds; 0 without a limit.
    pub cpu_quota_us: i64,
    /// Memory in bytes; 0 without a limit.
    pub memory_bytes: i64,
    /// How readily the kernel ends it when memory runs out.
    pub oom_score_adj: i64,
}

/// Source: kubelet's `generateLinuxContainerResources` and its out-of-memory policy.
pub fn runtime_resources(spec: &PodSpec, container: &Container, memory_capacity: u64) -> RuntimeResources {
    let clamp = |value: i128| i64::try_from(value).unwrap_or(i64::MAX);
    let limit = stated(container, Of::Limits, "cpu").filter(|m| *m > 0);
    let request = stated(container, Of::Requests, "cpu").or(limit).unwrap_or(0);
    let memory = stated(container, Of::Limits, "memory").filter(|m| *m > 0).map_or(0, |m| m / 1000);
    let quota = limit.map(|m| clamp(m * i128::from(CPU_PERIOD_US) / 1000).max(CPU_QUOTA_US_MIN));
    RuntimeResources {
        cpu_shares: clamp(request * 1024 / 1000).max(CPU_SHARES_MIN),
        cpu_period_us: if quota.is_some() { CPU_PERIOD_US } else { 0 },
        cpu_quota_us: quota.unwrap_or(0),
        memory_bytes: clamp(memory),
        oom_score_adj: oom_score_adj(spec, container, memory_capacity),
    }
}

fn oom_score_adj(spec: &PodSpec, container: &Container, memory_capacity: u64) -> i64 {
    match qos_class(spec) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let request = stated(container, Of::Requests, "memory").unwrap_or(0) / 1000;
            let adjusted = 1000 - 1000 * request / i128::from(memory_capacity.max(1));
            i64::try_from(adjusted.clamp(3, 999)).unwrap_or(999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check_milli(text: &str, expected: Option<i128>) {
        assert_eq!(parse_milli(&Quantity(text.to_owned())), expected, "{text}");
    }

    #[test]
    fn quantities() {
        check_milli("1", Some(1000));
        check_milli("250m", Some(250));
        check_milli("0.5", Some(500));
        check_milli("1.5Gi", Some(1_610_612_736_000));
        check_milli("64Mi", Some(67_108_864_000));
        check_milli("100n", Some(1));
        check_milli("1500u", Some(2));
        check_milli("1e3", Some(1_000_000));
        check_milli("5E-1", Some(500));
        check_milli("2E", Some(2_000_000_000_000_000_000_000));
        check_milli("-1", Some(-1000));
        for bad in ["", "m", "1x", "1.2.3", "--1", "1e", "1e99", "9".repeat(60).as_str()] {
            check_milli(bad, None);
        }
        assert_eq!(parse_value(&Quantity("1500m".into())), Some(2));
    }

    fn spec(resources: &[serde_json::Value]) -> PodSpec {
        let containers: Vec<_> = resources.iter().map(|r| json!({ "name": "c", "resources": r })).collect();
        serde_json::from_value(json!({ "containers": containers })).unwrap()
    }

    #[track_caller]
    fn check_qos(resources: &[serde_json::Value], expected: &str) {
        assert_eq!(qos_class(&spec(resources)), expected);
    }

    #[test]
    fn quality_of_service() {
        let full = json!({ "limits": { "cpu": "1", "memory": "1Gi" } });
        let equal = json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1000m" } });
        let less = json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1m" } });
        check_qos(&[json!({})], "BestEffort");
        check_qos(&[json!({ "limits": { "cpu": "0" } })], "BestEffort");
        check_qos(&[full.clone(), equal], "Guaranteed");
        check_qos(&[full.clone(), less], "Burstable");
        check_qos(&[full, json!({})], "Burstable");
    }

    #[test]
    fn runtime_values() {
        let with = |r: serde_json::Value| {
            let spec = spec(&[r]);
            runtime_resources(&spec, &spec.containers[0], 1 << 30)
        };
        let none = RuntimeResources { cpu_shares: 2, oom_score_adj: 1000, ..RuntimeResources::default() };
        assert_eq!(with(json!({})), none);
        let burstable = RuntimeResources {
            cpu_shares: 102,
            cpu_period_us: 100_000,
            cpu_quota_us: 50_000,
            memory_bytes: 64 << 20,
            oom_score_adj: 500,
        };
        assert_eq!(
            with(json!({
                "requests": { "cpu": "100m", "memory": "512Mi" },
                "limits": { "cpu": "500m", "memory": "64Mi" },
            })),
            burstable
        );
    }
}
