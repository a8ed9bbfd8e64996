"use strict";
(function () {
  var all = function (query) { return Array.prototype.slice.call(document.querySelectorAll(query)); };
  // filters take effect as soon as something is chosen; without this script their button does it
  all("form[data-auto]").forEach(function (form) {
    form.addEventListener("change", function (event) { if (event.target.matches("select, [type=search]")) { form.requestSubmit(); } });
    form.addEventListener("submit", function () { // an address says only what was chosen
      all("form[data-auto] select, form[data-auto] input").forEach(function (one) { one.disabled = one.value === ""; });
    });
  });
  window.addEventListener("pageshow", function () {
    all("form[data-auto] select, form[data-auto] input").forEach(function (one) { one.disabled = false; });
  });
  var dialog = document.getElementById("keys"), waits = "";
  all("[data-keys]").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () { dialog.showModal(); });
  });
  var boxes = all("input[name=v]");
  boxes.forEach(function (box) { // two can be compared: ticking a third lets the first of them go
    box.addEventListener("change", function () {
      boxes.filter(function (one) { return one.checked && one !== box; }).slice(1).forEach(function (one) { one.checked = false; });
    });
  });
  var pages = { v: "/", c: "/compare", r: "/runs", e: "/episodes", a: "/alerts" };
  var follow = function (query) { var link = document.querySelector(query); if (link) { link.click(); } };
  var move = function (step) {
    var rows = all("[data-row]"), at = rows.findIndex(function (one) { return one.classList.contains("at"); });
    var next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step))];
    if (!next) { return; }
    rows.forEach(function (one) { one.classList.remove("at"); });
    next.classList.add("at");
    (next.querySelector("[data-open]") || next).focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) { return; }
    var key = event.key, went = waits === "g" && Object.prototype.hasOwnProperty.call(pages, key);
    waits = key;
    if (went) { location.href = pages[key]; return; }
    if (key === "j") { move(1); }
    else if (key === "k") { move(-1); }
    else if (key === "n") { follow("a[rel=next]"); }
    else if (key === "p") { follow("a[rel=prev]"); }
    else if (key === "?") { dialog.showModal(); }
    else if (key === "/") { var first = document.querySelector(".filters select, .filters input"); if (first) { event.preventDefault(); first.focus(); } }
  });
})();
