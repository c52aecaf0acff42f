// Buttons that copy the examples of the API pages.

for (const button of document.querySelectorAll(".example button")) {
  const label = button.textContent;
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.closest(".example").querySelector("pre").textContent);
    button.textContent = button.dataset.done;
    setTimeout(() => (button.textContent = label), 2000);
  });
}
