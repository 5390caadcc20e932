// The server tells times in UTC; whoever looks lives somewhere. Titles and clocks are told in the browser's own zone.
const CLOCK = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const WHOLE = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "long" });

const EXACT = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium", hour12: false });

export const clock = (time) => CLOCK.format(new Date(time.dateTime));

function tellExactly() {
  for (const time of document.querySelectorAll("time[data-exact]")) time.textContent = EXACT.format(new Date(time.dateTime));
}

export function startTimes() {
  for (const time of document.querySelectorAll(".feed time")) time.textContent = clock(time);
  tellExactly();
  document.addEventListener("htmx:after:swap", tellExactly);
  document.addEventListener("mouseover", (event) => {
    const time = event.target.closest?.("time[datetime]");
    if (time) time.title = WHOLE.format(new Date(time.dateTime));
  });
}
