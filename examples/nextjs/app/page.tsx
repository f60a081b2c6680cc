'use client';

import { generateId, isToolUIPart } from 'ai';
import { type FormEvent, Fragment, type KeyboardEvent, use, useEffect, useRef, useState } from 'react';
import { answerEnd, approvalOf, isQuestion, useChats, useStoredChat, visible } from 'ui-message-stream-client';
import type { ChatMessage } from './messages';
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

const ENDS = {
  stopped: 'This answer was stopped.',
  failed: 'This answer has failed.',
  interrupted: 'This answer was interrupted.',
  limit: 'This answer is cut: it has reached a limit.',
};

type Shown = { id: string; isNew: boolean; notice: string };

const newChat = (notice = ''): Shown => ({ id: generateId(), isNew: true, notice });

const addressOf = (id: string) => `/?chat=${encodeURIComponent(id)}`;

/** The chat that the address names, or a new one. Its id enters the address with the first message. */
export default function Page({ searchParams }: { searchParams: Promise<{ chat?: string | string[] }> }) {
  const { chat: named } = use(searchParams);
  const [shown, setShown] = useState(() => {
    if (named === undefined) return newChat();
    // Anybody can make a link.
    const isChat = typeof named === 'string' && /^[\w-]{1,64}$/.test(named);
    return isChat ? { id: named, isNew: false, notice: '' } : newChat('The address names no chat. This is a new one.');
  });
  // Nothing else stays in the address.
  useEffect(() => history.replaceState(null, '', shown.isNew ? '/' : addressOf(shown.id)), [shown]);
  const onUnknown = () => setShown(newChat('That chat does not exist, or it is not yours. This is a new one.'));
  return <Conversation key={shown.id} {...shown} onUnknown={onUnknown} />;
}

function Conversation({ id, isNew, notice, onUnknown }: Shown & { onUnknown: () => void }) {
  const chat = useStoredChat<ChatMessage>({ id, isNew });
  const { messages, status, isBusy, error, isUnknown } = chat;
  const { chats } = useChats();
  const [input, setInput] = useState('');
  const composer = useRef<HTMLTextAreaElement>(null);
  const last = messages.at(-1);
  const canAnswer = status !== 'opening' && status !== 'stopping';
  const questions = last?.parts.filter(
    part => isToolUIPart(part) && asksUser(part, approvalOf(messages, part.toolCallId)),
  ).length;
  const state = status === 'ready' && questions ? `${questions} waiting` : status;

  useEffect(() => {
    if (isUnknown) onUnknown();
  });
  // The user may have written before the page was ready.
  useEffect(() => setInput(composer.current?.value ?? ''), []);

  function send(text: string) {
    history.replaceState(null, '', addressOf(id));
    chat.sendMessage({ text });
  }

  function submit(event: FormEvent | KeyboardEvent) {
    event.preventDefault();
    if (isBusy || !input.trim()) return;
    send(input);
    setInput('');
  }

  /** Enter sends, and Shift and Enter begins another line. */
  function onKey(event: KeyboardEvent) {
    if (event.key === 'Enter' && !event.shiftKey && !event.nativeEvent.isComposing) submit(event);
  }

  function stop() {
    composer.current?.focus(); // the button goes
    chat.stop();
  }

  return (
    <main>
      <header>
        <h1>Chat with approvals</h1>
        <span className="badge" role="status">
          {state}
        </span>
        {messages.length > 0 && (
          <a href="/" data-testid="new-chat">
            New chat
          </a>
        )}
      </header>

      <div className="scroll" role="region" aria-label="Conversation" tabIndex={0}>
        <div className="messages" role="log">
          {notice && (
            <p className="muted" data-testid="notice">
              {notice}
            </p>
          )}
          {messages.length === 0 && status === 'ready' && (
            <>
              <div className="examples">
                {EXAMPLES.map(text => (
                  <button key={text} onClick={() => send(text)}>
                    {text}
                  </button>
                ))}
              </div>
              <nav aria-label="Your chats">
                {chats.map(({ id, title, hasQuestions }) => (
                  <a key={id} href={addressOf(id)}>
                    {visible(title) || 'Without a title'}
                    {hasQuestions && <span className="badge">waits for you</span>}
                  </a>
                ))}
              </nav>
            </>
          )}
          {chat.loadOlder && (
            <button data-testid="older" onClick={chat.loadOlder}>
              Older messages
            </button>
          )}

          {messages.map(message => {
            const isLive = isBusy && message === last;
            const end = answerEnd(message) ?? (message === last && chat.ended);
            return (
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
                    if (!isToolUIPart(part)) return null;
                    return (
                      <ToolCard
                        key={partIndex}
                        part={part}
                        messages={messages}
                        isLast={message === last}
                        isLive={isLive}
                        canAnswer={canAnswer && (message === last || isQuestion(messages, part))}
                        respond={chat.respond}
                        addToolOutput={chat.addToolOutput}
                      />
                    );
                  })}
                </article>
                {end && !isLive && (
                  <p className="muted" data-testid={end}>
                    {ENDS[end]}
                  </p>
                )}
              </Fragment>
            );
          })}

          {error && (
            <div className="error" role="alert" data-testid="error">
              <p>{error.message || 'Something went wrong.'}</p>
              <button data-testid="retry" onClick={chat.retry} disabled={isBusy}>
                Try again
              </button>
            </div>
          )}
        </div>
      </div>

      <form onSubmit={submit}>
        <textarea
          ref={composer}
          data-testid="input"
          aria-label="Message"
          placeholder="Ask something"
          rows={1}
          value={input}
          onChange={event => setInput(event.target.value)}
          onKeyDown={onKey}
          autoFocus
        />
        {isBusy ? (
          <button type="button" data-testid="stop" onClick={stop} disabled={!canAnswer}>
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
