import type { ChatAddToolOutputFunction } from 'ai';
import { getToolName, isToolUIPart } from 'ai';
import { type ReactNode, useEffect, useId, useRef, useState } from 'react';
import {
  type Approval,
  type ApprovalAnswer,
  approvalOf,
  changedInput,
  type InputField,
  inputFields,
  visible,
  visibleJson,
} from 'ui-message-stream-client';
import type { ChatMessage, ToolPart } from './messages';

type Props = {
  part: ToolPart;
  messages: ChatMessage[];
  /** Whether the call is in the last message: what was not answered before can no longer be. */
  isLast: boolean;
  /** Whether something is written to the message. */
  isLive: boolean;
  /** Whether the user can answer now. */
  canAnswer: boolean;
  respond: (part: ToolPart, answer: ApprovalAnswer) => Promise<void>;
  addToolOutput: ChatAddToolOutputFunction<ChatMessage>;
};

export function ToolCard({ part, messages, isLast, isLive, canAnswer, respond, addToolOutput }: Props) {
  const asked = approvalOf(messages, part.toolCallId);
  const name = getToolName(part);
  const asks = asksUser(part, asked);
  const approves = asks && part.state === 'approval-requested' && canAnswer;
  // The server's decision counts, and not what this page sent: another page may have decided first.
  const ended = asked && ENDED_WITHOUT_RUN[asked.state];
  const unanswerable = asks && !canAnswer && (isLive ? 'asked' : 'not answered');
  const isAnswered = part.state === 'approval-requested' && !asks;
  const state = ended?.label ?? (unanswerable || STATES[isAnswered ? 'approval-responded' : part.state]);
  const isOverruled = asked?.state === 'approved' && part.approval?.approved === false;
  const isOpenCall = !isLive && !asks && part.state.startsWith('input-');
  const unfinished = isOpenCall && (isLast && isAsking(messages, part) ? 'waiting for you' : 'interrupted');
  return (
    <div
      className="tool"
      role="group"
      data-testid={`tool-${name}`}
      data-state={part.state}
      data-approval={asked?.state}
      aria-label={visible(name)}
    >
      <p className="tool-head">
        <strong>{visible(titleOf(part))}</strong>{' '}
        <span className="badge">{unfinished || state}</span>
      </p>
      <p className="muted">
        {visible(name)}
        {asked?.agents && `, asked by ${visible(asked.agents.join(', '))}`}
      </p>
      {!approves && part.input !== undefined && (
        <pre>{visibleJson(asked?.changedInput !== undefined ? asked.changedInput : part.input)}</pre>
      )}
      {asked?.changedInput !== undefined && (
        <p className="muted">Changed before it ran. It was: {visibleJson(asked.originalInput)}</p>
      )}
      {ended && <p className="muted">{ended.text}</p>}
      {part.approval?.reason && !isOverruled && !ended && <p className="muted">Your reason: {part.approval.reason}</p>}
      {part.state === 'output-available' && <pre>{visibleJson(part.output)}</pre>}
      {part.state === 'output-error' && !ended && <p className="danger">{part.errorText}</p>}
      {approves && (
        <ApprovalQuestion
          key={part.approval.id}
          asked={asked}
          input={part.input}
          title={titleOf(part)}
          answer={answer => respond(part, answer)}
        />
      )}
      {asks && !approves && canAnswer && (
        <Location toolCallId={part.toolCallId} addToolOutput={addToolOutput} />
      )}
    </div>
  );
}

/**
 * Whether a call waits for the user, until the conversation goes on. A call that was approved in another
 * tab, or before a reload, may still run, also after Stop.
 */
export function asksUser(part: ToolPart, asked: Approval | undefined): boolean {
  const isLocation = part.type === 'tool-get_location' && part.state === 'input-available';
  return isLocation || (part.state === 'approval-requested' && asked?.state !== 'approved');
}

/** Whether an agent, which is the tool of a call, waits for the answer to a question. */
function isAsking(messages: ChatMessage[], part: ToolPart): boolean {
  const calls = messages.at(-1)?.parts.filter(isToolUIPart) ?? [];
  return calls.some(call => {
    const asked = approvalOf(messages, call.toolCallId);
    return asked?.agents?.[0] === getToolName(part) && asksUser(call, asked);
  });
}

const STATES: Record<ToolPart['state'], string> = {
  'input-streaming': 'being written',
  'input-available': 'called',
  'approval-requested': 'needs approval',
  'approval-responded': 'answered',
  'output-available': 'done',
  'output-error': 'failed',
  'output-denied': 'denied',
};

/** What a user reads about a call that did not run although the user did not deny it. */
const ENDED_WITHOUT_RUN: { [state in Approval['state']]?: { label: string; text: string } } =
  {
    expired: { label: 'expired', text: 'It was not answered in time and did not run.' },
    revoked: { label: 'not permitted', text: 'It is no longer permitted and did not run.' },
    superseded: {
      label: 'not answered',
      text: 'You sent a message instead of an answer. It did not run.',
    },
    lapsed: {
      label: 'approved, did not run',
      text: 'You approved this, but your newer message arrived first. It did not run.',
    },
  };

const titleOf = (part: ToolPart) => part.title ?? getToolName(part);

/**
 * What is asked about a call. It takes the focus when it appears, unless the user writes, answers
 * another question or reads elsewhere. No button gets the focus: a key that is pressed for something
 * else must not approve.
 */
function Question({ children }: { children: ReactNode }) {
  const node = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const composer = document.querySelector('form');
    const focused = document.activeElement;
    const isFree = focused === document.body || composer?.contains(focused);
    // Several questions appear at once, and the end of the conversation stays in sight.
    const isEmpty = !composer?.querySelector('textarea')?.value;
    if (isFree && isEmpty) node.current?.focus({ preventScroll: true });
    return () => {
      // The button with the focus has gone with the question. On a phone, focusing the composer opens the keyboard.
      if (document.activeElement !== document.body) return;
      const next = document.querySelector<HTMLElement>('.question');
      if (next) next.focus();
      else if (matchMedia('(pointer: fine)').matches) composer?.querySelector('textarea')?.focus();
    };
  }, []);
  return (
    <div ref={node} className="question" role="group" aria-label="Question" tabIndex={-1}>
      {children}
    </div>
  );
}

type QuestionProps = {
  asked: Approval | undefined;
  input: unknown;
  title: string;
  answer: (answer: ApprovalAnswer) => void;
};

function ApprovalQuestion({ asked, input, title, answer }: QuestionProps) {
  const [reason, setReason] = useState('');
  const fields = inputFields(input, asked?.editable);
  // What the controls of the fields hold, while they are open.
  const [edits, setEdits] = useState<(string | boolean)[]>();
  const { box, read, look } = useReadToTheEnd();
  const { input: changed, changes, unreadable } = changedInput(input, fields, edits ?? fields.map(({ edit }) => edit));
  const isChanged = changes.length > 0;

  const deny = () => answer({ approved: false, reason: reason.trim() || undefined });
  function approve() {
    if (unreadable.length === 0) answer({ approved: true, ...(isChanged && { input: changed }) });
  }
  return (
    <Question>
      {isChanged ? (
        <p>{`${visible(title)} with ${changes.map(inWords).join(' and ')}?`}</p>
      ) : (
        asked && <p>{visible(asked.description)}</p>
      )}
      <pre ref={box} className="input" aria-label="Input" tabIndex={0} onScroll={look}>
        {visibleJson(changed)}
      </pre>
      {asked?.expiresAt && (
        <p className="muted">Can be answered until {time(asked.expiresAt)}.</p>
      )}
      {asked?.hidesCharacters && (
        <p className="danger">Careful: the input holds characters that cannot be seen.</p>
      )}
      {asked?.decidedByOthers && <p>Somebody else has to approve this. You can deny it.</p>}
      {edits && (
        <Fields fields={fields} edits={edits} change={setEdits} close={() => setEdits(undefined)} />
      )}
      {unreadable.map(field => (
        <p key={nameOf(field)} className="danger" role="alert">
          {nameOf(field)} is not {field.kind === 'number' ? 'a number' : 'JSON'}.
        </p>
      ))}
      {!read && <p>Scroll through the whole input, then you can approve it.</p>}
      <div className="actions">
        <button
          className="primary"
          data-testid="approve"
          disabled={!read || asked?.decidedByOthers}
          onClick={approve}
        >
          Approve
        </button>
        {fields.length > 0 && !asked?.decidedByOthers && (
          <button
            data-testid="change"
            onClick={() => setEdits(edits ? undefined : fields.map(({ edit }) => edit))}
          >
            {edits ? 'Back' : 'Change'}
          </button>
        )}
        <button data-testid="deny" onClick={deny}>
          Deny
        </button>
        <input
          data-testid="deny-reason"
          aria-label="Reason for denying"
          placeholder="Reason, if you deny"
          value={reason}
          onChange={event => setReason(event.target.value)}
          onKeyDown={event => event.key === 'Enter' && !event.nativeEvent.isComposing && deny()}
        />
      </div>
    </Question>
  );
}

type FieldsProps = {
  fields: InputField[];
  edits: (string | boolean)[];
  change: (edits: (string | boolean)[]) => void;
  close: () => void;
};

/** A control for each field of the input that the user may change. They and the buttons stay in sight, also above a keyboard. */
function Fields({ fields, edits, change, close }: FieldsProps) {
  const node = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => {
    const actions = node.current?.closest('.question')?.querySelector('.actions');
    const show = () => [actions, node.current].forEach(part => part?.scrollIntoView({ block: 'nearest' }));
    show();
    addEventListener('resize', show);
    return () => removeEventListener('resize', show);
  }, []);
  return (
    <div ref={node} className="fields" onKeyDown={event => event.key === 'Escape' && close()}>
      {fields.map((field, at) => {
        const edit = edits[at];
        const set = (edit: string | boolean) => change(edits.with(at, edit));
        const Control = field.isLong ? 'textarea' : 'input';
        const control = `${id}${at}`;
        return (
          <div key={control}>
            <label htmlFor={control}>
              {nameOf(field)}
              {field.kind === 'json' && ' (JSON)'}
            </label>
            {typeof edit === 'boolean' ? (
              <input id={control} type="checkbox" checked={edit} onChange={event => set(event.target.checked)} />
            ) : (
              <Control
                id={control}
                inputMode={field.kind === 'number' ? 'decimal' : undefined}
                rows={field.isLong ? 3 : undefined}
                autoComplete="off"
                spellCheck={false}
                autoFocus={at === 0}
                value={edit}
                onChange={event => set(event.target.value)}
              />
            )}
          </div>
        );
      })}
    </div>
  );
}

const nameOf = ({ name }: InputField) => visible(name ?? 'input');

/** What has changed in a field. */
function inWords(field: InputField & { now: unknown }): string {
  const shown = (value: unknown) => (typeof value === 'string' ? visible(value) : visibleJson(value));
  const [before, now] = [shown(field.value), shown(field.now)];
  const isShort = /^.{1,60}$/.test(before) && /^.{1,60}$/.test(now);
  return `${nameOf(field)} ${isShort ? `${now} instead of ${before}` : 'changed'}`;
}

/** Whether a box has shown its text to the end. One that needs no scrolling has at once. */
function useReadToTheEnd() {
  const box = useRef<HTMLPreElement>(null);
  const [read, setRead] = useState(false);
  function look() {
    const { scrollTop = 0, clientHeight = 0, scrollHeight = 0 } = box.current ?? {};
    if (clientHeight > 0 && scrollTop + clientHeight >= scrollHeight - 2) setRead(true);
  }
  useEffect(() => {
    const size = new ResizeObserver(look); // also calls it once the box is laid out
    if (box.current) size.observe(box.current);
    return () => size.disconnect();
  }, []);
  return { box, read, look };
}

const time = (at: number) =>
  new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });

/** `get_location` has no handler on the server: the browser runs it, if its user agrees. */
function Location({
  toolCallId,
  addToolOutput,
}: Pick<Props, 'addToolOutput'> & { toolCallId: string }) {
  const call = { tool: 'get_location', toolCallId } as const;
  const fail = (errorText: string) => addToolOutput({ ...call, state: 'output-error', errorText });
  const [isSharing, setSharing] = useState(false);
  // Once the call has a result, or the conversation has gone on, the location is not given out.
  const isAsked = useRef(false);
  useEffect(() => {
    isAsked.current = true;
    return () => {
      isAsked.current = false;
    };
  }, []);

  function share() {
    setSharing(true);
    navigator.geolocation.getCurrentPosition(
      ({ coords: { latitude, longitude } }) =>
        isAsked.current && addToolOutput({ ...call, output: { latitude, longitude } }),
      error => isAsked.current && fail(`The location could not be found: ${error.message}`),
      { timeout: 10_000 },
    );
  }

  return (
    <Question>
      <div className="actions">
        <button className="primary" data-testid="share" onClick={share} disabled={isSharing}>
          Share
        </button>
        <button
          data-testid="refuse"
          onClick={() => fail('The user refused to share the location.')}
        >
          Refuse
        </button>
      </div>
    </Question>
  );
}
