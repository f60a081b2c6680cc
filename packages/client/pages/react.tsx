// A page with `useStoredChat`, for v6 and v7 of the AI SDK. It has the test ids of `tests/browser`.

import { getToolName, isToolUIPart, type DynamicToolUIPart, type ToolUIPart, type UIMessage } from 'ai';
import { useState } from 'react';
import { createRoot } from 'react-dom/client';
import {
  type Approval,
  answerEnd,
  approvalOf,
  type ApprovalAnswer,
  ChatServer,
  isQuestion,
  useChats,
  useStoredChat,
} from 'ui-message-stream-client';

type ChatMessage = UIMessage<unknown, { approval: Approval; progress: string }>;
type ToolPart = ToolUIPart | DynamicToolUIPart;

const parameters = new URLSearchParams(location.search);
const id = parameters.get('chat') ?? '';
const isNew = parameters.has('new');
const clientTools = [{ name: 'locate', description: 'Where the person is.', requiresApproval: true }];
const body = () => ({ clientTools });

/** The inputs of the calls that this page has executed. */
const executed: unknown[] = Object.assign(window, { executed: [] }).executed;

const server = new ChatServer({
  // The user signs in within the page.
  signIn: () => new Promise(signedIn => Object.assign(window, { signedIn })),
});

function Page() {
  const chat = useStoredChat<ChatMessage>({
    id,
    isNew,
    server,
    body,
    onToolCall: ({ toolCall }) => {
      if (toolCall.toolName === 'locate') locate(toolCall);
    },
  });
  const { messages, status, isBusy, error, loadOlder } = chat;
  const { chats } = useChats({ server });
  function locate({ toolCallId, input }: { toolCallId: string; input: unknown }) {
    executed.push(input);
    void chat.addToolOutput({ tool: 'locate', toolCallId, output: 'Bern' });
  }
  const [text, setText] = useState('');
  return (
    <main>
      <p data-testid="status">{status}</p>
      <ul>
        {chats.map(({ id, title, isLive, hasQuestions }) => (
          <li key={id} data-testid="chat">
            {title} {isLive && 'writes'} {hasQuestions && 'asks'}
          </li>
        ))}
      </ul>
      {chat.isUnknown && <p data-testid="unknown">There is no such chat.</p>}
      {loadOlder && <button data-testid="older" onClick={loadOlder}>Older</button>}
      {messages.map(message => (
        <article key={message.id} data-testid={`message-${message.role}`} data-end={answerEnd(message)}>
          {message.parts.map((part, index) => {
            if (part.type === 'text') return <p key={index}>{part.text}</p>;
            if (part.type === 'data-progress') return <p key={index} data-testid="progress">{part.data}</p>;
            if (!isToolUIPart(part)) return null;
            const asked = approvalOf(messages, part.toolCallId);
            const locates = getToolName(part) === 'locate' && part.state === 'input-available' && !isBusy;
            return (
              <div key={index}>
                <Call part={part} asked={asked} isOpen={isQuestion(messages, part)} respond={chat.respond} />
                {locates && <button data-testid="run" onClick={() => locate(part)}>Tell</button>}
              </div>
            );
          })}
        </article>
      ))}
      {error && (
        <p>
          <span data-testid="error">{error.message}</span> <button data-testid="retry" onClick={chat.retry}>Try again</button>
        </p>
      )}
      <form
        onSubmit={event => {
          event.preventDefault();
          void chat.sendMessage({ text });
          setText('');
        }}
      >
        <input data-testid="input" aria-label="Message" value={text} onChange={event => setText(event.target.value)} />
        <button data-testid="send" disabled={isBusy}>Send</button>
        <button type="button" data-testid="stop" disabled={!isBusy} onClick={chat.stop}>Stop</button>
        <button type="button" data-testid="regenerate" onClick={() => chat.regenerate()}>Write again</button>
      </form>
    </main>
  );
}

type CallProps = {
  part: ToolPart;
  asked: Approval | undefined;
  isOpen: boolean;
  respond: (part: ToolPart, answer: ApprovalAnswer) => Promise<void>;
};

function Call({ part, asked, isOpen, respond }: CallProps) {
  const name = getToolName(part);
  const input = part.input as { amount?: number } | undefined;
  const [amount, setAmount] = useState(String(input?.amount ?? ''));
  const [reason, setReason] = useState('');
  const approve = () =>
    respond(part, { approved: true, ...(asked?.editable && { input: { ...input, amount: Number(amount) } }) });
  return (
    <section data-testid={`tool-${name}`} data-state={part.state} data-approval={asked?.state}>
      <p>
        <b>{name}</b>{asked?.agents && <em> asked by {asked.agents.join(', ')}</em>}
      </p>
      <pre data-testid="call-input">{JSON.stringify(asked?.changedInput ?? part.input)}</pre>
      {asked?.changedInput !== undefined && <p>It was: {JSON.stringify(asked.originalInput)}</p>}
      <p>
        {part.state}
        {part.approval?.reason && `: ${part.approval.reason}`}
        {asked?.approvedBy && `, decided by ${asked.approvedBy}`}
      </p>
      {part.output !== undefined && <pre data-testid="output">{JSON.stringify(part.output)}</pre>}
      {part.errorText && <p data-testid="call-error">{part.errorText}</p>}
      {isOpen && (
        <p>
          {asked?.editable && (
            <input data-testid="amount" aria-label="Amount" value={amount} onChange={event => setAmount(event.target.value)} />
          )}
          <button data-testid="approve" disabled={asked?.decidedByOthers} onClick={approve}>Approve</button>
          <input data-testid="deny-reason" aria-label="Reason" value={reason} onChange={event => setReason(event.target.value)} />
          <button data-testid="deny" onClick={() => respond(part, { approved: false, reason: reason || undefined })}>
            Deny
          </button>
        </p>
      )}
    </section>
  );
}

createRoot(document.getElementById('root')!).render(<Page />);
