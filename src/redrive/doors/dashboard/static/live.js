import { clock } from "./times.js";

// One stream tells that something happened; the page then asks for its live part again, at most once a second.
// It never does so under somebody's hands: while a dialog is open, a form is half filled in, or rows are selected.
const LEAST = 1000;
const MOST = 5000; // so old nothing on the page gets, even where nothing happens: times go on
const LONGEST_FEED = 50;

const status = document.getElementById("live-status");
const toggle = document.getElementById("live-toggle");
const region = () => document.querySelector("[data-live]");

let stopped = false;
let connected = false;
let owing = false;
let asking = false;
let last = 0;
let timer = 0;
let failed = false;
let refused = false; // this browser has no token any more
let sent = null; // the form on its way: what it changes is shown by its own answer, and never by an older one
const acting = () => Boolean(sent?.isConnected); // its answer may have taken it off the page

const dirty = () =>
  document.querySelector("dialog[open]") ? "a dialog is open"
  : document.querySelector("[data-live] input[type=checkbox]:checked") ? "rows are selected"
  : [...document.querySelectorAll("#main form:not([role=search])")].some(changed) ? "you are editing"
  : selecting() ? "text is selected"
  : document.activeElement?.closest?.("[data-live] :is(input:not([type=checkbox]), textarea, select)") ? "you are editing"
  : "";

function selecting() {
  const selection = getSelection();
  return !selection.isCollapsed && selection.toString().trim() && region()?.contains(selection.anchorNode);
}

function changed(form) {
  return [...form.elements].some((each) => each.type !== "hidden" && each.offsetParent !== null && differs(each));
}

function differs(each) {
  if (each instanceof HTMLTextAreaElement) return each.value !== each.defaultValue;
  if (!(each instanceof HTMLInputElement)) return false;
  return each.type === "checkbox" || each.type === "radio" ? each.checked !== each.defaultChecked : each.value !== each.defaultValue;
}

function show() {
  const why = stopped ? "" : dirty();
  const state = stopped || why ? "paused" : failed ? "reconnecting" : connected ? "live" : "reconnecting";
  const trouble = refused ? "Not let in: open the link that redrive serve shows" : failed ? "Refresh failed, trying again" : "Reconnecting…";
  const words = { live: "Live", paused: why ? `Held still: ${why}` : "Held still", reconnecting: trouble };
  const word = status.querySelector(".live-word");
  status.dataset.state = state;
  if (word.textContent !== words[state]) say(word, words[state]);
  toggle.textContent = stopped ? "Follow again" : "Hold still";
  toggle.hidden = Boolean(why);
}

/** What comes after a colon or a comma is left out where there is no room; it stays in the title and for screen readers. */
function say(word, text) {
  const [, first, rest] = text.match(/^([^:,]+)(.*)$/);
  const more = document.createElement("span");
  more.className = "live-why";
  more.textContent = rest;
  word.replaceChildren(first, more);
  word.title = text;
}

function refresh() {
  clearTimeout(timer);
  timer = 0;
  show();
  if (!owing || stopped || asking || !region()) return;
  if (document.hidden || acting() || dirty()) { timer = setTimeout(refresh, LEAST); return; }
  const wait = last + LEAST - Date.now();
  if (wait > 0) { timer = setTimeout(refresh, wait); return; }
  owing = false;
  asking = true;
  last = Date.now();
  region().dispatchEvent(new CustomEvent("refresh"));
}

const due = () => { owing = true; if (!timer) refresh(); };

function told(event) {
  if (!JSON.parse(event.data).events.length) return;
  due();
  const feed = document.querySelector("[data-feed]");
  if (!feed || stopped || feed.dataset.feed === "paused") return;
  const { events, skipped } = JSON.parse(event.data);
  if (skipped) add(feed, null);
  for (const each of events) add(feed, each);
  while (feed.children.length > LONGEST_FEED) feed.lastElementChild.remove();
  document.querySelector("[data-feed-empty]")?.remove();
}

function add(feed, said) {
  const atTop = feed.scrollTop < 4;
  const line = document.getElementById(said ? `feed-${said.look}` : "feed-skipped").content.cloneNode(true);
  if (said) {
    const time = line.querySelector("time");
    time.dateTime = new Date(said.at * 1000).toISOString();
    time.textContent = clock(time);
    line.querySelector("[data-move] .chip span").textContent = said.words;
    line.querySelector("[data-what]").textContent = said.task;
    const link = line.querySelector("a, [data-id]");
    link.textContent = said.job.slice(-8);
    if (said.href) link.href = said.href;
  }
  const before = feed.scrollHeight;
  feed.prepend(line);
  if (!atTop) feed.scrollTop += feed.scrollHeight - before; // who has scrolled down keeps what they read
}

let stream = null;
let cursor = document.body.dataset.liveAfter ?? ""; // what happened while the page was on its way is told, too

/** Only a page that is seen listens: a browser gives a host no more than six connections, and hidden pages need none. */
function connect() {
  if (stream || document.hidden) return;
  const mine = stream = new EventSource(document.body.dataset.liveUrl + (cursor ? `?after=${encodeURIComponent(cursor)}` : ""));
  mine.addEventListener("open", () => { connected = true; due(); });
  mine.addEventListener("tick", (event) => { cursor = event.lastEventId; told(event); });
  mine.addEventListener("error", () => {
    connected = false;
    show();
    if (mine.readyState !== EventSource.CLOSED) return; // the browser asks again by itself
    disconnect();
    cursor = "";
    due(); // a refresh tells why
    setTimeout(connect, 3000);
  });
}

function disconnect() {
  stream?.close();
  stream = null;
  connected = false;
}

export function startLive() {
  if (!status) return;
  toggle.hidden = false;
  toggle.addEventListener("click", () => { stopped = !stopped; owing ||= !stopped; refresh(); });
  document.addEventListener("htmx:before:request", (event) => {
    if (!event.target.matches?.("form")) return;
    sent = event.target;
    region()?.dispatchEvent(new CustomEvent("htmx:abort"));
  });
  document.addEventListener("htmx:before:swap", (event) => {
    if (!event.target.matches?.("[data-live]") || !dirty()) return;
    event.preventDefault(); // somebody began while it was on its way
    owing = true;
  });
  document.addEventListener("htmx:finally:request", (event) => {
    if (event.target === sent) sent = null;
    if (!event.target.matches?.("[data-live]")) return;
    const answer = event.detail.ctx.response;
    asking = false;
    failed = !acting() && (!answer || answer.status >= 400);
    refused = failed && answer?.status === 401;
    owing ||= failed || !answer;
    refresh();
  });
  for (const name of ["input", "change", "close", "toggle", "focusin", "focusout", "selectionchange"]) document.addEventListener(name, () => queueMicrotask(show), true);
  document.addEventListener("visibilitychange", () => { document.hidden ? disconnect() : connect(); refresh(); });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  document.addEventListener("click", (event) => {
    const pause = event.target.closest("[data-feed-toggle]");
    if (!pause) return;
    const feed = document.querySelector("[data-feed]");
    feed.dataset.feed = feed.dataset.feed === "paused" ? "" : "paused";
    pause.textContent = feed.dataset.feed === "paused" ? "Follow again" : "Hold still";
    pause.setAttribute("aria-pressed", String(feed.dataset.feed === "paused"));
  });
  last = Date.now();
  setInterval(() => { if (connected && Date.now() - last > MOST) due(); }, LEAST);
  show();
  connect();
}
