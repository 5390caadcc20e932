// The dashboard reads without this file. What it adds: live refreshes, keys, plots, the theme, dialogs in older browsers.
import { startDialogs } from "./dialogs.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startPlots } from "./plots.js";
import { startTheme } from "./theme-toggle.js";
import { startTimes } from "./times.js";

startTheme();
startDialogs();
startKeys();
startPlots();
startTimes();
startLive();
