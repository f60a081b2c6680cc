//! Calls a tool, and answers the input requests of its server.

use std::time::Duration;

use ::rmcp::model::{
    CallToolRequestParams, CallToolResponse, DEFAULT_MRTR_MAX_ROUNDS, InputRequest,
    InputRequiredResult, InputResponses, RequestId, ServerRequest,
};
use ::rmcp::service::{DynService, RequestContext};
use ::rmcp::{Peer, RoleClient, ServiceError};
use tokio::time::sleep;

use ui_message_stream::id::log_text;

/// Calls a tool. If the server asks for input, the handler answers, and the call is repeated with the
/// answers, as the protocol says: the server has not executed it yet, or continues it by its state.
///
/// The response asks for input if the server asks again and again, or if there is no handler.
pub(super) async fn call(
    peer: &Peer<RoleClient>,
    handler: Option<&dyn DynService<RoleClient>>,
    mut params: CallToolRequestParams,
) -> Result<CallToolResponse, ServiceError> {
    for _ in 1..DEFAULT_MRTR_MAX_ROUNDS {
        let response = peer.call_tool_once(params.clone()).await?;
        let (CallToolResponse::InputRequired(required), Some(handler)) = (&response, handler)
        else {
            return Ok(response);
        };
        let answers = answers(peer, handler, required.clone()).await?;
        if answers.is_empty() {
            if required.request_state.is_none() {
                return Err(ServiceError::UnexpectedResponse);
            }
            // The server only wants to be asked again.
            sleep(Duration::from_millis(250)).await;
        }
        params.input_responses = Some(answers).filter(|answers| !answers.is_empty());
        params.request_state = required.request_state.clone();
    }
    peer.call_tool_once(params).await
}

async fn answers(
    peer: &Peer<RoleClient>,
    handler: &dyn DynService<RoleClient>,
    required: InputRequiredResult,
) -> Result<InputResponses, ServiceError> {
    let mut answers = InputResponses::new();
    for (key, request) in required.input_requests.unwrap_or_default() {
        let request = match request {
            InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
            InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
            InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
            _ => return Err(ServiceError::UnexpectedResponse),
        };
        let context = RequestContext::new(RequestId::String(key.as_str().into()), peer.clone());
        let answer = handler.handle_request(request, context).await.map_err(|error| {
            // Only an error of the server may be shown.
            let error = error.to_string();
            tracing::warn!(error = &*log_text(&error), "no answer to what a tool asks for");
            ServiceError::UnexpectedResponse
        })?;
        let answer = serde_json::to_value(answer).map_err(|_| ServiceError::UnexpectedResponse)?;
        answers.insert(key, answer);
    }
    Ok(answers)
}
