'use client';

import { useChat } from '@ai-sdk/react';
import {
  generateId,
  getToolName,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from 'ai';
import { type FormEvent, Fragment, use, useEffect, useRef, useState } from 'react';
import { isChatId } from './chat-id';
import type { ChatMessage, Data, ToolPart } from './messages';
import { otherPages, storedChat } from './stored-chat';
import { asksUser, isOpen, ToolCard } from './tool-card';

// Each has a word that the demo's scripted model listens for; with a real model, ask what you like.
const EXAMPLES = [
  'How is the weather?',
  'Please delete a file',
  'Do something mixed',
  'What is my location?',
  'Write a slow answer',
  'Please fail',
];

/**
 * The server's newest data about the approval of a call. A later message may hold it: the client
 * changes no part of an earlier message.
 */
function approvalOf(messages: ChatMessage[], toolCallId: string): Data['approval'] | undefined {
  const parts = messages.flatMap(message => message.parts);
  const newest = parts.findLast(part => part.type === 'data-approval' && part.id === toolCallId);
  return newest?.type === 'data-approval' ? newest.data : undefined;
}

/** Whether an agent, which is the tool of this call, waits for the answer to a question. */
function isAsking({ messages, part }: { messages: ChatMessage[]; part: ToolPart }): boolean {
  const calls = messages.at(-1)?.parts.filter(isToolUIPart) ?? [];
  return calls.some(call => {
    const asked = approvalOf(messages, call.toolCallId);
    return asked?.agents?.[0] === getToolName(part) && asksUser(call, asked);
  });
}

/** True when all that the model waits for is answered: approvals, tools of the browser. */
function isAnswered(chat: { messages: ChatMessage[] }) {
  return (
    lastAssistantMessageIsCompleteWithApprovalResponses(chat) ||
    lastAssistantMessageIsCompleteWithToolCalls(chat)
  );
}

type Shown = { id: string; isStored: boolean; notice: string };

const newChat = (notice = ''): Shown => ({ id: generateId(), isStored: false, notice });

/** The chat that the address names, or a new one. Its id enters the address with the first message. */
export default function Page({
  searchParams,
}: {
  searchParams: Promise<{ chat?: string | string[] }>;
}) {
  const { chat: named } = use(searchParams);
  const [shown, setShown] = useState(() => {
    if (named === undefined) return newChat();
    if (typeof named !== 'string' || !isChatId(named))
      return newChat('The address names no chat. This is a new one.');
    return { id: named, isStored: true, notice: '' };
  });
  // Nothing else stays in the address: not `opened-again` (see user-cookie.ts), and no unknown chat.
  useEffect(() => {
    history.replaceState(null, '', shown.isStored ? addressOf(shown.id) : '/');
  }, [shown]);
  const startNew = () =>
    setShown(newChat('That chat does not exist, or it is not yours. This is a new one.'));
  return <Conversation key={shown.id} {...shown} onUnknown={startNew} />;
}

const addressOf = (id: string) => `/?chat=${encodeURIComponent(id)}`;

function Conversation({
  id,
  isStored,
  notice: opening,
  onUnknown,
}: Shown & { onUnknown: () => void }) {
  const [input, setInput] = useState('');
  const [notice, setNotice] = useState(opening);
  const [isReading, setReading] = useState(isStored);
  const [isStopping, setStopping] = useState(false);
  // The last message at each stop: the answer, or the user's own message if nothing had come.
  const [stopped, setStopped] = useState<ReadonlySet<string>>(new Set());
  // Posts to /api/chat, and does so again by itself once everything is answered.
  const [chat] = useState(() =>
    storedChat({
      id,
      sendAutomaticallyWhen: isAnswered,
      onReading: setReading,
      onNotice: setNotice,
      onUnknown,
      onFinish({ messages, isAbort }) {
        const id = messages.at(-1)?.id ?? '';
        setStopped(stopped => {
          const others = [...stopped].filter(other => other !== id);
          return new Set(isAbort ? [...others, id] : others);
        });
      },
    }),
  );
  const { messages, status, error, sendMessage, regenerate, resumeStream } = useChat({
    chat,
    resume: isStored,
  });
  const busy = status === 'submitted' || status === 'streaming';
  const isWaiting = busy || isReading || isStopping;
  const state = isReading ? 'opening' : status;
  const last = messages.at(-1);
  const questions =
    last?.parts.filter(
      part => isToolUIPart(part) && asksUser(part, approvalOf(messages, part.toolCallId)),
    ).length ?? 0;

  const [isOutdated, setOutdated] = useState(false);
  useEffect(() => {
    const look = ({ data }: MessageEvent) => data === id && setOutdated(true);
    otherPages().addEventListener('message', look);
    return () => otherPages().removeEventListener('message', look);
  }, [id]);
  useEffect(() => {
    if (!isOutdated || busy || isReading) return;
    setOutdated(false);
    resumeStream();
  }, [isOutdated, busy, isReading, resumeStream]);

  // Whether the last request was to write an answer again.
  const isRegenerating = useRef(false);

  function send(text: string) {
    isRegenerating.current = false;
    history.replaceState(null, '', addressOf(id));
    sendMessage({ text });
  }

  function submit(event: FormEvent) {
    event.preventDefault();
    if (isWaiting || !input.trim()) return;
    send(input);
    setInput('');
  }

  async function stop() {
    setStopping(true); // the DELETE must not stop the answer to the next message
    await chat.stop(); // closes this connection, no more: the server would go on answering
    const signal = AbortSignal.timeout(10_000); // a server that hangs does not block the page
    const stream = `/api/chat/${encodeURIComponent(id)}/stream`;
    await fetch(stream, { method: 'DELETE', signal }).catch(() => {});
    setStopping(false);
    // The server has ended these calls, or has closed their approval requests.
    if (chat.lastMessage?.parts.some(part => isToolUIPart(part) && isOpen(part))) resumeStream();
  }

  function retry() {
    // The connection was lost, the answer was not: the server has the rest, or still writes it.
    const isLost = error instanceof TypeError || error?.name === 'NetworkError';
    const location = last?.parts.findLast(part => part.type === 'tool-get_location');
    if (lastAssistantMessageIsCompleteWithApprovalResponses({ messages })) {
      sendMessage(); // what the person answered is sent once more, not asked again
    } else if (location && isAnswered({ messages })) {
      // The same for a result of this page. `sendMessage` may name an answer with an approval instead.
      const call = { tool: 'get_location', toolCallId: location.toolCallId } as const;
      if (location.state === 'output-available') {
        chat.addToolOutput({ ...call, output: location.output });
      } else {
        const errorText = location.errorText ?? 'The location is not known.';
        chat.addToolOutput({ ...call, state: 'output-error', errorText });
      }
    } else if (!last || (isLost && last.role === 'assistant')) {
      resumeStream();
    } else if (isLost && !isRegenerating.current) {
      // Nothing of the answer has come: the server recognizes a message that it has. Without an id,
      // the hook may name an answer with an approval instead, and the message would not be read.
      sendMessage({ parts: last.parts, metadata: last.metadata, messageId: last.id });
    } else {
      isRegenerating.current = true;
      regenerate();
    }
  }

  return (
    <main>
      <header>
        <h1>Chat with approvals</h1>
        <span className="badge" role="status">
          {busy || questions === 0 ? state : `${questions} waiting`}
        </span>
        {messages.length > 0 && (
          <a href="/" data-testid="new-chat">
            New chat
          </a>
        )}
      </header>

      <div className="scroll">
        <div className="messages" role="log">
          {notice && (
            <p className="muted" data-testid="notice">
              {notice}
            </p>
          )}
          {messages.length === 0 && !isReading && !error && (
            <div className="examples">
              {EXAMPLES.map(text => (
                <button key={text} onClick={() => send(text)}>
                  {text}
                </button>
              ))}
            </div>
          )}

          {messages.map(message => (
            <Fragment key={message.id}>
              <article className={message.role} data-testid={`message-${message.role}`}>
                {message.parts.map((part, partIndex) => {
                  if (part.type === 'text') return <p key={partIndex}>{part.text}</p>;
                  if (part.type === 'reasoning')
                    return (
                      <p key={partIndex} className="muted">
                        {part.text}
                      </p>
                    );
                  if (isToolUIPart(part))
                    return (
                      <ToolCard
                        key={partIndex}
                        part={part}
                        asked={approvalOf(messages, part.toolCallId)}
                        answerable={message === last && !isWaiting}
                        live={busy && message === last}
                        asking={message === last && isAsking({ messages, part })}
                        addToolApprovalResponse={chat.addToolApprovalResponse}
                        addToolOutput={chat.addToolOutput}
                      />
                    );
                  return null;
                })}
              </article>
              {stopped.has(message.id) && !(busy && message === last) && (
                <p className="muted" data-testid="stopped">
                  This answer was stopped.
                </p>
              )}
            </Fragment>
          ))}

          {error && (
            <div className="error" role="alert" data-testid="error">
              <p>{error.message || 'Something went wrong.'}</p>
              <button data-testid="retry" onClick={retry} disabled={isStopping}>
                Try again
              </button>
            </div>
          )}
        </div>
      </div>

      <form onSubmit={submit}>
        <input
          data-testid="input"
          aria-label="Message"
          placeholder="Ask something"
          value={input}
          onChange={event => setInput(event.target.value)}
          autoFocus
        />
        {busy ? (
          <button type="button" data-testid="stop" onClick={stop}>
            Stop
          </button>
        ) : (
          <button
            className="primary"
            data-testid="send"
            disabled={isWaiting || !input.trim()}
          >
            Send
          </button>
        )}
      </form>
    </main>
  );
}
