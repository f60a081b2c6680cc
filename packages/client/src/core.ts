export type { ChatEvent, ChatEvents } from './events.js';
export { changedInput, inputFields, type InputField } from './input-fields.js';
export { answerEnd, approvalOf, isQuestion, visible, visibleJson, type Approval, type AskingPart } from './messages.js';
export { reconnectingFetch } from './reconnecting-fetch.js';
export {
  ChatServer,
  ResponseError,
  type AnswerEnd,
  type ApprovalAnswer,
  type ChatSummary,
  type History,
  type Message,
  type ServerOptions,
} from './server.js';
export { StoredChat, type AnyChat, type ChatParts, type State, type Status, type StoredChatOptions } from './stored-chat.js';
export type { Texts } from './texts.js';
