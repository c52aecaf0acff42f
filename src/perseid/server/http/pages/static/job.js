// Live progress of a job. Without it the page is loaded again by its link.

const part = document.querySelector("[data-events]");
if (part) {
  const source = new EventSource(part.dataset.events);
  const show = (event) => {
    const job = JSON.parse(event.data);
    part.querySelector("[data-done]").textContent = job.done.toLocaleString("en");
    const bar = part.querySelector("progress");
    if (job.total) {
      bar.max = job.total;
      bar.value = job.done;
    }
  };
  source.addEventListener("progress", show);
  source.addEventListener("end", (event) => {
    show(event);
    source.close();
    location.reload();
  });
}
