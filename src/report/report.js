// Draws the charts of the page and offers its data for download. Runs after the data islands and Vega are in place.
"use strict";
(() => {
  const island = (id) => document.getElementById(id).textContent;

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

  const link = document.getElementById("download");
  link.href = URL.createObjectURL(new Blob([island("results")], { type: "application/json" }));
  link.hidden = false;

  Promise.all(JSON.parse(island("charts")).map(draw)).then(() => {
    document.documentElement.dataset.charts = document.querySelector("[data-state=failed]") ? "failed" : "drawn";
  });
})();
