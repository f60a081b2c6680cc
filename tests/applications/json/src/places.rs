//! Where a random value is put: `VALUE`. `FIRST` and `SECOND` are the halves of its text, as strings.

/// The chunks of a stream.
pub const STREAM: &[&str] = &[
    r#"{"type":"start","messageId":"m","later":VALUE}"#,
    r#"{"type":"data-x","data":VALUE,"later":VALUE}"#,
    r#"{"type":"data-y","id":"1","data":{"a":VALUE}}"#,
    r#"{"type":"text-start","id":"0","providerMetadata":{"p":{"a":VALUE}}}"#,
    r#"{"type":"tool-input-start","toolCallId":"c","toolName":"t","toolMetadata":{"a":VALUE}}"#,
    r#"{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":FIRST}"#,
    r#"{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":SECOND}"#,
    r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":VALUE}"#,
    r#"{"type":"tool-approval-request","toolCallId":"c","approvalId":"a","approvalDescriptor":VALUE,"inputSchemaInput":VALUE}"#,
    r#"{"type":"tool-output-available","toolCallId":"c","output":VALUE}"#,
    r#"{"type":"tool-input-error","toolCallId":"d","toolName":"t","input":VALUE,"errorText":""}"#,
    r#"{"type":"message-metadata","messageMetadata":{"a":VALUE,"b":{"a":1}}}"#,
    r#"{"type":"message-metadata","messageMetadata":{"b":VALUE}}"#,
    r#"{"type":"finish","messageMetadata":VALUE}"#,
];

pub const MESSAGE: &str = r#"{"id":"m","role":"assistant","metadata":VALUE,"later":VALUE,"parts":[
    {"type":"tool-t","toolCallId":"c","state":"output-available","input":VALUE,"output":VALUE,"later":VALUE},
    {"type":"tool-t","toolCallId":"d","state":"approval-responded","input":VALUE,
     "approval":{"id":"a","approved":true,"descriptor":VALUE,"later":VALUE}},
    {"type":"tool-t","toolCallId":"e","state":"output-error","rawInput":VALUE,"errorText":"",
     "callProviderMetadata":{"p":{"a":VALUE}}},
    {"type":"data-x","data":VALUE},
    {"type":"later","a":VALUE}]}"#;

/// What is no stream: messages and requests, and each kind of field that expects another value.
pub const OTHERS: &[&str] = &[
    r#"[MESSAGE]"#,
    r#"{"id":"c","messages":[MESSAGE],"later":VALUE,"approvalInputs":{"a":VALUE}}"#,
    r#"{"id":"c","message":MESSAGE,"approvalInputs":VALUE}"#,
    r#"{"id":VALUE,"messages":[],"format":VALUE}"#,
    r#"{"id":"c","messages":VALUE,"trigger":VALUE}"#,
    r#"{"id":"c","messages":[],"messageId":VALUE}"#,
    r#"{"id":"c","messages":[VALUE]}"#,
    r#"{"id":"c","messages":[{"id":"m","role":"user","parts":VALUE}]}"#,
    r#"{"id":"c","messages":[{"id":"m","role":VALUE,"parts":[VALUE]}]}"#,
    r#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":[{"type":"text","text":VALUE}]}]}"#,
    r#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":[
        {"type":"tool-t","toolCallId":"c","state":VALUE,"approval":VALUE}]}]}"#,
    r#"{"type":VALUE}"#,
    r#"{"type":"later","a":VALUE}"#,
    r#"{"type":"text-delta","id":"0","delta":VALUE}"#,
    r#"{"type":"tool-output-available","toolCallId":"c","output":1,"preliminary":VALUE}"#,
    r#"{"type":"finish","finishReason":VALUE}"#,
];
