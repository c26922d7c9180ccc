//! Validation of Jobs and CronJobs. Source: Kubernetes `pkg/apis/batch/validation/validation.go`.

use serde_json::Value;

use super::apps::not_negative;
use super::text;
use crate::fault::Faults;
use crate::path::Path;

/// The fields of a schedule, with the least and the greatest number of each.
const SCHEDULE_FIELDS: [(&str, u32, u32); 5] =
    [("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7)];
/// Names that stand for months and days.
const NAMES: [&str; 19] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "sun", "mon", "tue",
    "wed", "thu", "fri", "sat",
];
/// Longest name of a CronJob: its Jobs' names have eleven letters more.
const CRON_JOB_NAME_MAX: usize = 52;

/// Checks the spec of a Job.
pub(super) fn job_spec(spec: &Value, path: &Path<'_>, faults: &mut Faults) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
        "ttlSecondsAfterFinished",
    ] {
        not_negative(spec, field, path, faults);
    }
    if text(spec, "completionMode") == "Indexed" && spec["completions"].is_null() {
        faults.required(&path.field("completions"), "when completion mode is Indexed");
    }
    let (template, pod) = (path.field("template"), &spec["template"]["spec"]);
    let restart = text(pod, "restartPolicy");
    if pod.is_object() && !matches!(restart, "OnFailure" | "Never") {
        let path = template.field("spec");
        let supported = ["OnFailure", "Never"].map(Value::from);
        match restart {
            "" | "Always" => {
                faults.required(&path.field("restartPolicy"), "valid values: \"OnFailure\", \"Never\"")
            }
            other => faults.not_supported(&path.field("restartPolicy"), other, &supported),
        }
    }
}

/// What may not change of a Job.
pub(super) fn job_update(new: &Value, old: &Value, faults: &mut Faults) {
    let suspended = |job: &Value| job["spec"]["suspend"] == true;
    let started = old["status"]["startTime"].is_string();
    let spec = Path::Root.field("spec");
    for field in ["completions", "selector", "template", "completionMode", "podFailurePolicy"] {
        // A suspended Job that has not started may still get another template.
        let scheduling = field == "template" && suspended(old) && !started;
        let indexed = field == "completions" && text(&old["spec"], "completionMode") == "Indexed";
        if new["spec"][field] != old["spec"][field] && !scheduling && !indexed {
            faults.invalid(&spec.field(field), new["spec"][field].clone(), "field is immutable");
        }
    }
}

/// Checks a CronJob.
pub(super) fn cron_job(cron: &Value, path: &Path<'_>, faults: &mut Faults) {
    let name = text(&cron["metadata"], "name");
    if name.len() > CRON_JOB_NAME_MAX {
        let path = path.field("metadata");
        faults.invalid(&path.field("name"), name, "must be no more than 52 characters");
    }
    let (spec, path) = (&cron["spec"], path.field("spec"));
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        not_negative(spec, field, &path, faults);
    }
    let schedule = text(spec, "schedule");
    if schedule.contains("TZ") {
        let message = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        faults.invalid(&path.field("schedule"), schedule, message);
    } else if let Err(message) = check_schedule(schedule) {
        faults.invalid(&path.field("schedule"), schedule, message);
    }
}

/// Whether a schedule is one: five fields of numbers, names, ranges, steps and lists, or one of the words for such. Source:
/// github.com/robfig/cron/v3.
fn check_schedule(schedule: &str) -> Result<(), String> {
    if let Some(word) = schedule.strip_prefix('@') {
        let known = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"];
        return match known.contains(&word) || word.starts_with("every ") {
            true => Ok(()),
            false => Err(format!("unrecognized descriptor: {schedule}")),
        };
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != SCHEDULE_FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{schedule}]", fields.len()));
    }
    for (field, (name, least, greatest)) in fields.into_iter().zip(SCHEDULE_FIELDS) {
        for part in field.split(',') {
            check_part(part, (least, greatest)).map_err(|why| format!("{name} {part:?}: {why}"))?;
        }
    }
    Ok(())
}

fn check_part(part: &str, (least, greatest): (u32, u32)) -> Result<(), String> {
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    if step.is_some_and(|step| step.parse::<u32>().map_or(true, |step| step == 0)) {
        return Err("a step must be a positive number".to_owned());
    }
    if matches!(range, "*" | "?") {
        return Ok(());
    }
    let number = |text: &str| match text.parse::<u32>() {
        Ok(number) if (least..=greatest).contains(&number) => Ok(number),
        Ok(_) => Err(format!("{text} is not between {least} and {greatest}")),
        Err(_) if NAMES.contains(&text.to_lowercase().as_str()) => Ok(least),
        Err(_) => Err(format!("{text:?} is not a number")),
    };
    match range.split_once('-') {
        None => number(range).map(|_| ()),
        Some((from, upto)) => match (number(from)?, number(upto)?) {
            (from, upto) if from <= upto || from == least => Ok(()),
            _ => Err("a range must not end before it begins".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_five_fields_or_a_word() {
        for good in ["* * * * *", "*/5 0-6 1,15 jan-mar mon", "0 0 ? * 7", "@daily", "@every 1h"] {
            assert_eq!(check_schedule(good), Ok(()), "{good}");
        }
        for bad in
            ["", "* * * *", "60 * * * *", "* 24 * * *", "*/0 * * * *", "a * * * *", "5-1 * * * *", "@never"]
        {
            assert!(check_schedule(bad).is_err(), "{bad}");
        }
    }
}
