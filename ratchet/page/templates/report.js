"use strict";
(function () {
  var all = function (query) { return Array.prototype.slice.call(document.querySelectorAll(query)); };
  all("[data-toggle]").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      var open = button.getAttribute("aria-pressed") !== "true";
      all(button.dataset.toggle).forEach(function (one) { one.open = open; });
      button.setAttribute("aria-pressed", String(open));
      button.textContent = open ? button.dataset.close : button.dataset.open;
    });
  });
  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = all("details.table:not([open]), details.episode:not([open])");
    opened.forEach(function (one) { one.open = true; });
  });
  window.addEventListener("afterprint", function () { opened.forEach(function (one) { one.open = false; }); });
})();
