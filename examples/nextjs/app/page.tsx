'use client';

import { Chat, useChat } from '@ai-sdk/react';
import {
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from 'ai';
import { type FormEvent, Fragment, useEffect, useState } from 'react';
import type { ChatMessage, Data } from './messages';
import { asksUser, ToolCard } from './tool-card';

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

/** True when all that the model waits for is answered: approvals, tools of the browser. */
function isAnswered(chat: { messages: ChatMessage[] }) {
  return (
    lastAssistantMessageIsCompleteWithApprovalResponses(chat) ||
    lastAssistantMessageIsCompleteWithToolCalls(chat)
  );
}

export default function Page() {
  // See user-cookie.ts. Without this, a copied address would end with the query.
  useEffect(() => {
    if (location.search === '?opened-again') history.replaceState(null, '', '/');
  }, []);
  const [input, setInput] = useState('');
  // The last message at each stop: the answer, or the user's own message if nothing had come.
  const [stopped, setStopped] = useState<ReadonlySet<string>>(new Set());
  // Posts to /api/chat, and does so again by itself once everything is answered. Made here, because
  // a chat that the hook makes (@ai-sdk/react 3.0.325) shows twice what `resumeStream` replays.
  const [chat] = useState(
    () =>
      new Chat<ChatMessage>({
        sendAutomaticallyWhen: isAnswered,
        onFinish({ messages, isAbort }) {
          const id = messages.at(-1)?.id ?? '';
          setStopped(stopped => {
            const others = [...stopped].filter(other => other !== id);
            return new Set(isAbort ? [...others, id] : others);
          });
        },
      }),
  );
  const { messages, status, error, sendMessage, regenerate, resumeStream } = useChat({ chat });
  const busy = status === 'submitted' || status === 'streaming';
  const last = messages.at(-1);
  const questions = last?.parts.filter(part => isToolUIPart(part) && asksUser(part)).length ?? 0;

  function submit(event: FormEvent) {
    event.preventDefault();
    if (busy || !input.trim()) return;
    sendMessage({ text: input });
    setInput('');
  }

  async function stop() {
    await chat.stop(); // closes this connection, no more: the server would go on answering
    await fetch(`/api/chat/${encodeURIComponent(chat.id)}/stream`, { method: 'DELETE' });
  }

  function retry() {
    const brokenOff = error instanceof TypeError && last?.role === 'assistant';
    if (isAnswered({ messages })) {
      sendMessage(); // what the person answered is sent once more, not asked again
    } else if (brokenOff) {
      resumeStream(); // the connection was lost, the answer was not: the server wrote on
    } else {
      regenerate();
    }
  }

  return (
    <main>
      <header>
        <h1>Chat with approvals</h1>
        <span className="badge" role="status">
          {busy || questions === 0 ? status : `${questions} waiting for you`}
        </span>
      </header>

      <div className="scroll">
        <div className="messages" role="log">
          {messages.length === 0 && (
            <div className="examples">
              {EXAMPLES.map(text => (
                <button key={text} onClick={() => sendMessage({ text })}>
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
                        answerable={message === last}
                        live={busy && message === last}
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
              <button data-testid="retry" onClick={retry}>
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
          <button className="primary" data-testid="send" disabled={!input.trim()}>
            Send
          </button>
        )}
      </form>
    </main>
  );
}
