import type { ChatAddToolApproveResponseFunction, ChatAddToolOutputFunction } from 'ai';
import { getToolName } from 'ai';
import { useState } from 'react';
import type { ChatMessage, Data, ToolPart } from './messages';

type Props = {
  part: ToolPart;
  asked?: Data['approval'];
  /** False once the conversation has gone on: what was not answered then can no longer be. */
  answerable: boolean;
  addToolApprovalResponse: ChatAddToolApproveResponseFunction;
  addToolOutput: ChatAddToolOutputFunction<ChatMessage>;
};

export function ToolCard({ part, asked, answerable, addToolApprovalResponse, addToolOutput }: Props) {
  const name = getToolName(part);
  const tooLate = part.state === 'approval-requested' && !answerable;
  return (
    <section
      className="tool"
      data-testid={`tool-${name}`}
      data-state={part.state}
      aria-label={name}
    >
      <p className="tool-head">
        <strong>{whatItDoes(part)}</strong>{' '}
        <span className="badge">{tooLate ? 'not answered' : STATES[part.state]}</span>
      </p>
      {part.approval?.reason && <p className="muted">Your reason: {part.approval.reason}</p>}
      {part.state === 'output-available' && <pre>{JSON.stringify(part.output)}</pre>}
      {part.state === 'output-error' && <p className="danger">{part.errorText}</p>}
      {part.state === 'approval-requested' && answerable && (
        <Approval
          asked={asked}
          answer={(approved, reason) =>
            addToolApprovalResponse({ id: part.approval.id, approved, reason })
          }
        />
      )}
      {part.type === 'tool-get_location' && part.state === 'input-available' && answerable && (
        <Location toolCallId={part.toolCallId} addToolOutput={addToolOutput} />
      )}
    </section>
  );
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

/** Inputs arrive piece by piece, so any field may be missing for a moment. */
function whatItDoes(part: ToolPart): string {
  switch (part.type) {
    case 'tool-get_weather':
      return `Weather in ${part.input?.city ?? '…'}`;
    case 'tool-delete_file':
      return `Delete ${part.input?.path ?? '…'}`;
    case 'tool-transfer':
      return `Transfer ${part.input?.amount ?? '…'} to ${part.input?.to ?? '…'}`;
    case 'tool-get_location':
      return 'Tell where you are';
    default:
      return getToolName(part);
  }
}

type ApprovalProps = Pick<Props, 'asked'> & {
  answer: (approved: boolean, reason?: string) => void;
};

function Approval({ asked, answer }: ApprovalProps) {
  const [reason, setReason] = useState('');
  return (
    <div className="actions">
      {asked && <p className="muted">Can be answered until {time(asked.expiresAt)}.</p>}
      {asked?.hidesCharacters && (
        <p className="danger">Careful: the input holds characters that cannot be seen.</p>
      )}
      <button className="primary" data-testid="approve" onClick={() => answer(true)}>
        Approve
      </button>
      <button data-testid="deny" onClick={() => answer(false, reason.trim() || undefined)}>
        Deny
      </button>
      <input
        data-testid="deny-reason"
        aria-label="Reason for denying"
        placeholder="Reason, if you deny"
        value={reason}
        onChange={event => setReason(event.target.value)}
      />
    </div>
  );
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

  function share() {
    navigator.geolocation.getCurrentPosition(
      ({ coords: { latitude, longitude } }) =>
        addToolOutput({ ...call, output: { latitude, longitude } }),
      error => fail(`The location could not be found: ${error.message}`),
      { timeout: 10_000 },
    );
  }

  return (
    <div className="actions">
      <button className="primary" data-testid="share" onClick={share}>
        Share
      </button>
      <button data-testid="refuse" onClick={() => fail('The user refused to share the location.')}>
        Refuse
      </button>
    </div>
  );
}
