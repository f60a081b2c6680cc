// The page of `docs/front-end.md`, with what a user needs to answer: `useChat` with its defaults, an editor
// for the input of a call, and what the server says of a question. It has the test ids of `tests/browser`.

import { useChat } from '@ai-sdk/react';
import {
  DefaultChatTransport,
  getToolName,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from 'ai';
import { version } from 'ai/package.json';
import { useState } from 'react';
import { createRoot } from 'react-dom/client';

const approvalInputs = {};
const clientTools = [{ name: 'locate', description: 'Where the person is.', requiresApproval: true }];
const transport = new DefaultChatTransport({
  headers: { 'ai-sdk-version': version },
  body: () => ({ approvalInputs, clientTools }),
});

/** Leaves out denied calls: the helpers of the SDK wait for their outputs. */
const isAnswered = ({ messages }) => {
  const last = messages.slice(-1).map(message => ({
    ...message,
    parts: message.parts.filter(part => !isToolUIPart(part) || part.state !== 'output-denied'),
  }));
  return (
    lastAssistantMessageIsCompleteWithApprovalResponses({ messages: last }) ||
    lastAssistantMessageIsCompleteWithToolCalls({ messages: last })
  );
};

/** The inputs of the calls that this page has executed. */
window.executed = [];

function Page({ id, stored }) {
  const chat = useChat({
    id,
    messages: stored,
    transport,
    sendAutomaticallyWhen: isAnswered,
    onToolCall: ({ toolCall }) => toolCall.toolName === 'locate' && locate(toolCall),
  });
  const locate = ({ toolCallId, input }) => {
    window.executed.push(input);
    chat.addToolOutput({ tool: 'locate', toolCallId, output: 'Bern' });
  };
  const { messages, status, error, sendMessage, setMessages, addToolApprovalResponse, resumeStream, stop } = chat;
  const decide = async (part, response) => {
    const decisions = [{ approvalId: part.approval.id, ...response }];
    const headers = { 'content-type': 'application/json' };
    await fetch('/api/approvals', { method: 'POST', headers, body: JSON.stringify({ decisions }) });
    setMessages((await (await fetch(`/api/chat/${encodeURIComponent(id)}`)).json()).messages);
  };
  const [text, setText] = useState('');
  const isBusy = status === 'submitted' || status === 'streaming';
  const approvalOf = ({ toolCallId }) =>
    messages
      .flatMap(message => message.parts)
      .findLast(part => part.type === 'data-approval' && part.id === toolCallId)?.data;
  return (
    <main>
      {messages.map(message => (
        <article key={message.id} className={message.role} data-testid={`message-${message.role}`}>
          {message.parts.map((part, index) => {
            if (part.type === 'text') return <p key={index}>{part.text}</p>;
            if (part.type === 'data-progress') return <p key={index} data-testid="progress">{part.data}</p>;
            if (part.type === 'custom') return <p key={index} data-testid="custom">{part.kind}</p>;
            if (!isToolUIPart(part)) return null;
            const isLast = message === messages.at(-1);
            const respond = response =>
              isLast ? addToolApprovalResponse({ id: part.approval.id, ...response }) : decide(part, response);
            const locates = getToolName(part) === 'locate' && part.state === 'input-available' && !isBusy;
            return (
              <div key={index}>
                <Call part={part} asked={approvalOf(part)} isLast={isLast} respond={respond} />
                {locates && <button data-testid="run" onClick={() => locate(part)}>Tell</button>}
              </div>
            );
          })}
        </article>
      ))}
      {error && <p data-testid="error">{error.message}</p>}
      <form
        onSubmit={event => {
          event.preventDefault();
          sendMessage({ text });
          setText('');
        }}
      >
        <input data-testid="input" aria-label="Message" value={text} onChange={event => setText(event.target.value)} />
        <button data-testid="send" disabled={isBusy}>Send</button>
        <button type="button" data-testid="stop" disabled={!isBusy} onClick={stop}>Stop</button>
        <button type="button" data-testid="resume" onClick={resumeStream}>Resume</button>
      </form>
    </main>
  );
}

function Call({ part, asked, isLast, respond }) {
  const name = getToolName(part);
  const [amount, setAmount] = useState(String(part.input?.amount ?? ''));
  const [reason, setReason] = useState('');
  // Another user, or another page, may have answered.
  const isPending = part.state === 'approval-requested' && (asked?.state ?? 'pending') === 'pending';
  const isOpen = isPending && (isLast || asked?.staysOpen);
  const approve = () => {
    if (asked?.editable) approvalInputs[part.approval.id] = { ...part.input, amount: Number(amount) };
    respond({ approved: true });
  };
  return (
    <section data-testid={`tool-${name}`} data-state={part.state} data-approval={asked?.state}>
      <p>
        <b>{name}</b>{asked?.agents && <em> asked by {asked.agents.join(', ')}</em>}
      </p>
      <pre data-testid="call-input">{JSON.stringify(asked?.changedInput ?? part.input)}</pre>
      {asked?.changedInput && <p>It was: {JSON.stringify(asked.originalInput)}</p>}
      <p>
        {part.preliminary ? 'running' : part.state}
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
          <button data-testid="deny" onClick={() => respond({ approved: false, reason: reason || undefined })}>
            Deny
          </button>
        </p>
      )}
    </section>
  );
}

const id = new URLSearchParams(location.search).get('chat');
const response = await fetch(`/api/chat/${encodeURIComponent(id)}`);
const stored = response.ok ? (await response.json()).messages : [];
createRoot(document.getElementById('root')).render(<Page id={id} stored={stored} />);
