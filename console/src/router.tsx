/** Addresses of the views. All parameters of an address are plain text. */

import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  redirect,
} from "@tanstack/react-router";
import { readApprovalFilters } from "./lib/approvals";
import { readChangeFilters } from "./lib/changes";
import { type RunFilters, readFilters } from "./lib/filters";
import { readActionFilters } from "./lib/platform-actions";
import { readUsage } from "./lib/usage";
import { Shell } from "./shell";
import { NotFound, RouteProblem } from "./views/fallback";

const root = createRootRoute({ component: Shell, notFoundComponent: NotFound });

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/runs", replace: true });
  },
});

export type RunSearch = RunFilters & { tab?: string };

const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : undefined);

const runs = createRoute({
  getParentRoute: () => root,
  path: "/runs",
  validateSearch: readFilters,
  component: lazyRouteComponent(() => import("./views/runs/runs"), "Runs"),
});

const run = createRoute({
  getParentRoute: () => root,
  path: "/runs/$runId",
  validateSearch: (search): RunSearch => ({ ...readFilters(search), tab: text(search.tab) }),
  component: lazyRouteComponent(() => import("./views/run/run"), "RunPage"),
});

const inbox = createRoute({
  getParentRoute: () => root,
  path: "/inbox",
  component: lazyRouteComponent(() => import("./views/inbox/inbox"), "Inbox"),
});

interface TrySearch {
  text?: string;
  event_type?: string;
  conversation_id?: string;
  bot_id?: string;
  thread_id?: string;
}

const tryEvent = createRoute({
  getParentRoute: () => root,
  path: "/try",
  validateSearch: (search): TrySearch => ({
    text: text(search.text),
    event_type: text(search.event_type),
    conversation_id: text(search.conversation_id),
    bot_id: text(search.bot_id),
    thread_id: text(search.thread_id),
  }),
  component: lazyRouteComponent(() => import("./views/try/try"), "Try"),
});

const conversations = createRoute({
  getParentRoute: () => root,
  path: "/conversations",
  component: lazyRouteComponent(() => import("./views/conversations/conversations"), "Conversations"),
});

const conversation = createRoute({
  getParentRoute: () => root,
  path: "/conversations/$conversationId",
  validateSearch: (search): { bot_id?: string; thread_id?: string } => ({
    bot_id: text(search.bot_id),
    thread_id: text(search.thread_id),
  }),
  component: lazyRouteComponent(() => import("./views/conversations/conversation"), "Conversation"),
});

const compare = createRoute({
  getParentRoute: () => root,
  path: "/compare",
  validateSearch: (search): { a?: string; b?: string } => ({ a: text(search.a), b: text(search.b) }),
  component: lazyRouteComponent(() => import("./views/compare/compare"), "Compare"),
});

const actions = createRoute({
  getParentRoute: () => root,
  path: "/actions",
  validateSearch: readActionFilters,
  component: lazyRouteComponent(() => import("./views/actions/actions"), "PlatformActions"),
});

const approvals = createRoute({
  getParentRoute: () => root,
  path: "/approvals",
  validateSearch: readApprovalFilters,
  component: lazyRouteComponent(() => import("./views/approvals/approvals"), "Approvals"),
});

const approval = createRoute({
  getParentRoute: () => root,
  path: "/approvals/$approvalId",
  component: lazyRouteComponent(() => import("./views/approvals/approval"), "ApprovalPage"),
});

const changes = createRoute({
  getParentRoute: () => root,
  path: "/changes",
  validateSearch: readChangeFilters,
  component: lazyRouteComponent(() => import("./views/changes/changes"), "Changes"),
});

const agents = createRoute({
  getParentRoute: () => root,
  path: "/agents",
  component: lazyRouteComponent(() => import("./views/agents/agents"), "Agents"),
});

const agent = createRoute({
  getParentRoute: () => root,
  path: "/agents/$agentId",
  component: lazyRouteComponent(() => import("./views/agents/agent"), "AgentPage"),
});

const endpoints = createRoute({
  getParentRoute: () => root,
  path: "/endpoints",
  component: lazyRouteComponent(() => import("./views/endpoints/endpoints"), "Endpoints"),
});

const schedules = createRoute({
  getParentRoute: () => root,
  path: "/schedules",
  component: lazyRouteComponent(() => import("./views/schedules/schedules"), "Schedules"),
});

const schedule = createRoute({
  getParentRoute: () => root,
  path: "/schedules/$scheduleId",
  component: lazyRouteComponent(() => import("./views/schedules/schedule"), "SchedulePage"),
});

const sources = createRoute({
  getParentRoute: () => root,
  path: "/sources",
  component: lazyRouteComponent(() => import("./views/sources/sources"), "Sources"),
});

const source = createRoute({
  getParentRoute: () => root,
  path: "/sources/$sourceId",
  component: lazyRouteComponent(() => import("./views/sources/source"), "SourcePage"),
});

const webhooks = createRoute({
  getParentRoute: () => root,
  path: "/webhooks",
  component: lazyRouteComponent(() => import("./views/webhooks/webhooks"), "Webhooks"),
});

const webhook = createRoute({
  getParentRoute: () => root,
  path: "/webhooks/$webhookId",
  validateSearch: (search): { status?: string } => ({ status: text(search.status) }),
  component: lazyRouteComponent(() => import("./views/webhooks/webhook"), "WebhookPage"),
});

const usage = createRoute({
  getParentRoute: () => root,
  path: "/usage",
  validateSearch: readUsage,
  component: lazyRouteComponent(() => import("./views/usage/usage"), "Usage"),
});

const system = createRoute({
  getParentRoute: () => root,
  path: "/system",
  component: lazyRouteComponent(() => import("./views/system/system"), "System"),
});

const catalogue = createRoute({
  getParentRoute: () => root,
  path: "/catalogue",
  validateSearch: (search): { tab?: string } => ({ tab: text(search.tab) }),
  component: lazyRouteComponent(() => import("./views/catalogue/catalogue"), "Catalogue"),
});

function parseSearch(search: string): Record<string, string> {
  return Object.fromEntries(new URLSearchParams(search));
}

function stringifySearch(search: Record<string, unknown>): string {
  const given = Object.entries(search).filter(
    (entry): entry is [string, string] => typeof entry[1] === "string",
  );
  const written = new URLSearchParams(given).toString();
  return written === "" ? "" : `?${written}`;
}

export const router = createRouter({
  routeTree: root.addChildren([
    home,
    runs,
    run,
    inbox,
    compare,
    tryEvent,
    conversations,
    conversation,
    actions,
    approvals,
    approval,
    changes,
    agents,
    agent,
    endpoints,
    catalogue,
    schedules,
    schedule,
    sources,
    source,
    webhooks,
    webhook,
    usage,
    system,
  ]),
  basepath: "/console",
  parseSearch,
  stringifySearch,
  defaultErrorComponent: RouteProblem,
  scrollRestoration: true,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
