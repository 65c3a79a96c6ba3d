// Draws the charts of the page, offers its data and its charts as files, and makes a menu of the settings to paste. Runs after the data
// islands and Vega are in place.
"use strict";
(() => {
  const island = (id) => document.getElementById(id).textContent;
  const charts = JSON.parse(island("charts"));

  // "ast": expressions are interpreted, so the page's security policy can forbid eval.
  const options = {
    actions: false,
    ast: true,
    renderer: "svg",
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };

  async function draw({ id, spec }) {
    const place = document.getElementById("chart-" + id);
    try {
      await vegaEmbed(place, spec, options);
      place.dataset.state = "drawn";
    } catch (error) {
      place.dataset.state = "failed";
      place.textContent = "This chart could not be drawn: " + error.message;
      console.error(id, error);
    }
  }

  function download(url, name) {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  }

  // A file has no page around it: colours as they are now, a background, a title, a width. tools/render_charts.py does the same.
  async function save({ id, title, spec }, format) {
    const colours = getComputedStyle(document.documentElement);
    const text = JSON.stringify(spec).replace(/var\((--chart-\w+)\)/g, (all, name) => colours.getPropertyValue(name).trim());
    const colour = (role) => colours.getPropertyValue("--chart-" + role).trim();
    const whole = { ...JSON.parse(text), width: 820, padding: 16, background: colour("surface") };
    whole.title = { text: title, anchor: "start", color: colour("ink"), fontSize: 15, offset: 12 };
    const { view, finalize } = await vegaEmbed(document.createElement("div"), whole, options);
    download(await view.toImageURL(format, 2), id + "." + format);
    finalize();
  }

  for (const button of document.querySelectorAll("[data-format]")) {
    const chart = charts.find(({ id }) => id === button.dataset.chart);
    button.addEventListener("click", () => save(chart, button.dataset.format));
    button.parentElement.hidden = false;
  }

  for (const section of document.querySelectorAll(".paste")) {
    const tools = [...section.querySelectorAll("[data-tool]")];
    const menu = section.querySelector("select");
    menu.append(...tools.map((tool) => new Option(tool.dataset.tool)));
    const show = () => tools.forEach((tool, i) => (tool.hidden = i !== menu.selectedIndex));
    menu.addEventListener("change", show);
    for (const tool of tools) {
      const button = tool.querySelector("button");
      button.hidden = false;
      button.addEventListener("click", async () => {
        const code = tool.querySelector("code");
        try {
          await navigator.clipboard.writeText(code.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(code);  // for the reader's own copy command
        }
      });
    }
    section.querySelector("label").hidden = false;
    section.dataset.menu = "";
    show();
  }

  const link = document.getElementById("download");
  link.href = URL.createObjectURL(new Blob([island("results")], { type: "application/json" }));
  link.hidden = false;

  Promise.all(charts.map(draw)).then(() => {
    document.documentElement.dataset.charts = document.querySelector("[data-state=failed]") ? "failed" : "drawn";
  });
})();
