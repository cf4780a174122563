/** Acts that the page offers to a key, by its role. The gateway decides; the page only hides refused acts. */

export interface Rights {
  /** Lists of the admin API. */
  readsAdmin: boolean;
  /** Posts events. */
  posts: boolean;
  /** Cancels and retries runs. */
  acts: boolean;
  /** Answers questions. */
  answers: boolean;
  /** Creates and revokes approvals of tool calls. */
  approves: boolean;
  /** Changes agents, endpoints, documents and keys. */
  changes: boolean;
  /** Lists and creates workspaces. */
  owns: boolean;
}

const NONE: Rights = {
  readsAdmin: false,
  posts: false,
  acts: false,
  answers: false,
  approves: false,
  changes: false,
  owns: false,
};

const BY_ROLE: Record<string, Rights> = {
  // It has access to no workspace.
  owner: { ...NONE, owns: true },
  admin: {
    readsAdmin: true,
    posts: true,
    acts: true,
    answers: true,
    approves: true,
    changes: true,
    owns: false,
  },
  operator: { ...NONE, readsAdmin: true, acts: true, answers: true, approves: true },
  viewer: { ...NONE, readsAdmin: true },
  approver: { ...NONE, answers: true },
  client: { ...NONE, posts: true, acts: true, answers: true },
};

/** A role of a later gateway offers nothing but views. */
export function rightsOf(role: string): Rights {
  return BY_ROLE[role] ?? { ...NONE, readsAdmin: true };
}
