// Times in the reader's zone, and buttons that copy a text. Pages are complete without it.
const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
for (const element of document.querySelectorAll("time[datetime]")) {
  const time = new Date(element.dateTime);
  if (!Number.isNaN(time.getTime())) {
    element.title = element.dateTime;
    element.textContent = format.format(time);
  }
}
if (navigator.clipboard) {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const label = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = button.dataset.done;
      setTimeout(() => { button.textContent = label; }, 2000);
    });
  }
}
