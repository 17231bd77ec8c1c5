"use strict";
// Tables are whole without this; it lets their heads sort and the devices be searched.
for (const table of document.querySelectorAll("table[data-sorts]")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.key;
      const text = (row) => row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) =>
        key(a) === undefined || key(b) === undefined ? text(a).localeCompare(text(b), undefined, { numeric: true }) : key(a) - key(b)
      );
      body.append(...(falling ? rows.reverse() : rows));
    });
  });
}
const searched = document.querySelector("table[data-searched]");
const input = document.getElementById("search");
if (searched && input) {
  const rows = [...searched.tBodies[0].rows];
  const found = document.getElementById("found");
  const filtered = document.getElementById("filtered"); // what a print tells in place of the field
  const isFigure = (cell) => cell.matches(".number") && /\d/.test(cell.textContent);
  const words = new Map(rows.map((row) => [row, [...row.cells].filter((cell) => !isFigure(cell)).map((cell) => cell.textContent.toLowerCase())]));
  const show = () => {
    const asked = input.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !words.get(row).some((each) => each.includes(asked));
    const shown = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    found.textContent = asked ? shown : `${rows.length} in all`;
    filtered.textContent = `${shown} devices shown: search '${input.value.trim()}'`;
    filtered.hidden = !asked;
  };
  input.addEventListener("input", show);
  show();
  input.closest(".search").hidden = false;
}
// What scrolls can be reached by keyboard, and nothing else is a stop.
const stops = () => {
  for (const box of document.querySelectorAll(".scroll")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
stops();
addEventListener("resize", stops);
