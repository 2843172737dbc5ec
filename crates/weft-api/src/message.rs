//! Requests and replies as bytes: on a connection the request's JSON is the head of a frame of kind `Api`, or
//! its body where it is longer than a head may be; the reply's JSON is the body of the answer.
//!
//! It owns the envelope with the schema's version. Every decoder takes hostile bytes.

use crate::{ApiAnswer, ApiError, ApiRequest, SCHEMA_VERSION};
use serde::{Deserialize, Serialize};

/// Bytes that are no message of this schema.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// They are no such JSON.
    #[error("not a management message")]
    Json(#[source] serde_json::Error),
    /// They are of a newer schema.
    #[error("the message has schema {found}, this program knows up to {SCHEMA_VERSION}: upgrade it")]
    Schema {
        /// The schema found.
        found: u32,
    },
}

/// What comes back: exactly one of an answer and an error, with the schema's version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApiReply {
    /// [`SCHEMA_VERSION`] of the side that answers.
    pub schema_version: u32,
    /// The answer, or why there is none.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// See [`ApiReply`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The operation was carried out.
    Answer(ApiAnswer),
    /// It was not, and nothing was changed.
    Error(ApiError),
}

impl ApiReply {
    /// The answer, or the error.
    ///
    /// # Errors
    /// The error that was replied.
    pub fn into_result(self) -> Result<ApiAnswer, ApiError> {
        match self.outcome {
            Outcome::Answer(answer) => Ok(answer),
            Outcome::Error(error) => Err(error),
        }
    }
}

/// A request as bytes.
///
/// # Panics
/// Never: the shape always serialises.
pub fn encode_request(request: &ApiRequest) -> Vec<u8> {
    serde_json::to_vec(request).expect("a request serialises")
}

/// A request from bytes.
///
/// # Errors
/// If the bytes are no request that this program knows.
pub fn decode_request(bytes: &[u8]) -> Result<ApiRequest, MessageError> {
    serde_json::from_slice(bytes).map_err(MessageError::Json)
}

/// The outcome of an operation as bytes.
///
/// # Panics
/// Never: the shape always serialises.
pub fn encode_reply(result: Result<ApiAnswer, ApiError>) -> Vec<u8> {
    let outcome = match result {
        Ok(answer) => Outcome::Answer(answer),
        Err(error) => Outcome::Error(error),
    };
    serde_json::to_vec(&ApiReply { schema_version: SCHEMA_VERSION, outcome }).expect("a reply serialises")
}

/// The outcome of an operation from bytes.
///
/// # Errors
/// If the bytes are no reply, or one of a newer schema.
pub fn decode_reply(bytes: &[u8]) -> Result<ApiReply, MessageError> {
    #[derive(Deserialize)]
    struct Shape {
        schema_version: u32,
    }
    let shape: Shape = serde_json::from_slice(bytes).map_err(MessageError::Json)?;
    if shape.schema_version > SCHEMA_VERSION {
        return Err(MessageError::Schema { found: shape.schema_version });
    }
    serde_json::from_slice(bytes).map_err(MessageError::Json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorCode, FailureDomain, SettingsInfo, SettingsWish};

    fn create() -> ApiRequest {
        ApiRequest::VolumeCreate {
            name: "v".into(),
            size_bytes: 4096,
            protection: weft_types::Protection::mirror(2),
            pool: None,
            stripe_unit_bytes: None,
            width: None,
            failure_domain: FailureDomain::Node,
            thin: false,
            dry_run: false,
        }
    }

    #[test]
    fn a_request_reads_back_and_its_options_may_be_left_out() {
        assert_eq!(decode_request(&encode_request(&create())).expect("it is one"), create());
        let short = br#"{"op":"volume-create","name":"v","size_bytes":4096,"copies":2}"#;
        assert_eq!(decode_request(short).expect("it is one"), create());
    }

    #[test]
    fn a_misspelt_parameter_is_refused() {
        let misspelt = br#"{"op":"volume-delete","name":"v","dryrun":true}"#;
        assert!(decode_request(misspelt).is_err(), "a dry run that is not one would delete");
    }

    #[test]
    fn wishes_stand_beside_the_operation_and_none_changes_nothing() {
        let looks: [&[u8]; 2] = [
            br#"{"op":"settings"}"#,
            br#"{"op":"settings","rebuild_after_ms":null,"capacity_warning_percent":null,"capacity_critical_percent":null}"#,
        ];
        for text in looks {
            assert!(!decode_request(text).expect("it is one").is_mutation());
        }
        let wish = SettingsWish { capacity_critical_percent: Some(95), ..SettingsWish::default() };
        let text = br#"{"op":"settings","capacity_critical_percent":95}"#;
        assert_eq!(decode_request(text).expect("it is one"), ApiRequest::Settings(wish));
        assert!(ApiRequest::Settings(wish).is_mutation());
        assert!(
            decode_request(br#"{"op":"settings","rebuild_after":1}"#).is_err(),
            "a misspelt one is refused"
        );
    }

    #[test]
    fn a_reply_reads_back_as_answer_or_error() {
        let settings =
            SettingsInfo { rebuild_after_ms: 1, lease_ms: 2, session_ms: 3, capacity: Default::default() };
        let answer = ApiAnswer::Settings { settings };
        let bytes = encode_reply(Ok(answer.clone()));
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            r#"{"schema_version":1,"answer":{"op":"settings","settings":{"rebuild_after_ms":1,"lease_ms":2,"session_ms":3,"capacity":{"warning_percent":80,"critical_percent":90}}}}"#
        );
        assert_eq!(decode_reply(&bytes).expect("it is one").into_result(), Ok(answer));
        let error = ApiError::new(ErrorCode::NotFound, "there is no volume 'v'").with_hint("look");
        let reply = decode_reply(&encode_reply(Err(error.clone()))).expect("it is one");
        assert_eq!(reply.into_result(), Err(error));
    }

    #[test]
    fn a_newer_schema_is_refused() {
        let newer = br#"{"schema_version":2,"answer":{"op":"what"}}"#;
        assert!(matches!(decode_reply(newer), Err(MessageError::Schema { found: 2 })));
    }
}
