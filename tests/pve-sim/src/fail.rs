//! Answers of the API: success with data, or a failure with status, reason and body as PVE forms them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A 200 answer: `data` and, for some lists, more top-level keys (`total`, `changes`).
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) data: Value,
    pub(crate) more: Map<String, Value>,
}

impl Answer {
    pub(crate) fn to_json(&self) -> Value {
        let mut body = self.more.clone();
        body.insert("data".into(), self.data.clone());
        Value::Object(body)
    }
}

impl From<Value> for Answer {
    fn from(data: Value) -> Self {
        Self {
            data,
            more: Map::new(),
        }
    }
}

pub(crate) type ApiResult = Result<Answer, Fail>;

/// Everything that is not a 200 answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fail {
    /// JSON body with `message` and, for 400, `errors`. The message carries PVE's trailing newline.
    Json {
        status: u16,
        message: String,
        errors: BTreeMap<String, String>,
    },
    /// Errors of the HTTP layer itself: the message as plain text.
    Text { status: u16, message: String },
    /// 401 and the proxy's 595/596: a reason, no body.
    Empty { status: u16, reason: String },
    /// The connection ends without an answer.
    Lost,
}

impl Fail {
    /// A Perl `die`: 500.
    pub(crate) fn die(text: impl Into<String>) -> Self {
        let mut message = text.into();
        message.push('\n');
        Self::Json {
            status: 500,
            message,
            errors: BTreeMap::new(),
        }
    }

    pub(crate) fn denied(detail: &str) -> Self {
        let message = if detail.is_empty() {
            "Permission check failed\n".to_owned()
        } else {
            format!("Permission check failed ({detail})\n")
        };
        Self::Json {
            status: 403,
            message,
            errors: BTreeMap::new(),
        }
    }

    pub(crate) fn param(name: &str, text: impl Into<String>) -> Self {
        Self::params([(name.to_owned(), text.into())].into())
    }

    pub(crate) fn params(errors: BTreeMap<String, String>) -> Self {
        Self::Json {
            status: 400,
            message: "Parameter verification failed.\n".to_owned(),
            errors,
        }
    }

    pub(crate) fn not_implemented(method: &str, path: &str) -> Self {
        Self::Json {
            status: 501,
            message: format!("Method '{method} {path}' not implemented"),
            errors: BTreeMap::new(),
        }
    }

    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Json { status, .. } | Self::Text { status, .. } | Self::Empty { status, .. } => {
                *status
            }
            Self::Lost => 0,
        }
    }

    /// The text with which a task ends if its work dies with this failure: one line, exceptions with their code
    /// (`Exception.pm`, `RESTEnv.pm`: newlines become blanks, the last one of a `die` is cut).
    pub(crate) fn exit_text(&self) -> String {
        match self {
            Self::Json {
                status: 500,
                message,
                ..
            } => message.trim_end_matches('\n').replace('\n', " "),
            Self::Json {
                status,
                message,
                errors,
            } => {
                let mut text = format!("{status} {message}");
                for (name, error) in errors {
                    text.extend([name, ": ", error]);
                    if !error.ends_with('\n') {
                        text.push('\n');
                    }
                }
                if errors.is_empty() {
                    text.trim_end_matches('\n').replace('\n', " ")
                } else {
                    text.replace('\n', " ")
                }
            }
            Self::Text { message, .. } => message.clone(),
            Self::Empty { reason, .. } => reason.clone(),
            Self::Lost => "unexpected status".to_owned(),
        }
    }

    /// Put behind a text, as code does that catches an exception and dies again (`"$errmsg: $@"`): always 500.
    pub(crate) fn within(self, what: &str) -> Self {
        let Self::Json {
            status,
            message,
            errors,
        } = self
        else {
            return self;
        };
        let mut text = if status == 500 {
            format!("{what}: {message}")
        } else {
            format!("{what}: {status} {message}")
        };
        for (name, error) in errors {
            text.extend([&name, ": ", &error]);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
        Self::die(text.trim_end_matches('\n'))
    }

    pub(crate) fn body(&self) -> Option<Value> {
        let Self::Json {
            message, errors, ..
        } = self
        else {
            return None;
        };
        let mut body = json!({"data": null, "message": message});
        if !errors.is_empty()
            && let Some(map) = body.as_object_mut()
        {
            map.insert("errors".into(), json!(errors));
        }
        Some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_exception_ends_a_task_with_a_trailing_blank_and_a_die_does_not() {
        let hotplug = Fail::param("scsi1", "hotplug problem - busy\n");
        assert_eq!(
            hotplug.exit_text(),
            "400 Parameter verification failed. scsi1: hotplug problem - busy "
        );
        assert_eq!(
            Fail::die("disk 'scsi1' does not exist").exit_text(),
            "disk 'scsi1' does not exist"
        );
        assert_eq!(
            Fail::denied("/vms/100, VM.Audit").exit_text(),
            "403 Permission check failed (/vms/100, VM.Audit)"
        );
    }
}
