// Pictures for the next message: chosen, dropped or pasted; shown as thumbnails until they are sent.

const BYTES_MAX = 11 << 20;  // a body holds 16 MiB, and base64 takes a third more
const field = (id) => document.getElementById(id);
let chosen = [];  // {name, url}
let sees = false;

export function setModalities(modalities) {
  sees = (modalities || []).includes("image");
  field("add-picture").hidden = !sees;
  if (!sees) forget();
}

export function startPictures() {
  field("add-picture").addEventListener("click", () => field("picture-file").click());
  field("picture-file").addEventListener("change", (event) => { add(event.target.files); event.target.value = ""; });
  field("prompt").addEventListener("paste", (event) => add(event.clipboardData?.files));
  const place = field("chat");
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.toggle("over", sees); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    add(event.dataTransfer?.files);
  });
}

export function takePictures() {
  // The pictures of this message, which then has none any more.
  const taken = chosen;
  forget();
  return taken;
}

export function imageOf(picture) {
  const image = new Image();
  image.src = picture.url;
  image.alt = picture.name;
  return image;
}

async function add(files) {
  for (const file of files || []) {
    if (!file.type.startsWith("image/")) continue;
    if (!sees) { say("This model takes no pictures."); continue; }
    if (file.size > BYTES_MAX) { say(`${file.name} is too large.`); continue; }
    chosen.push({ name: file.name, url: await read(file) });
    draw();
  }
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

function forget() { chosen = []; draw(); }

function draw() {
  say("");
  field("pictures").replaceChildren(...chosen.map((picture) => {
    const item = document.createElement("li");
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.title = `Remove ${picture.name}`;
    remove.addEventListener("click", () => { chosen = chosen.filter((one) => one !== picture); draw(); });
    item.append(imageOf(picture), remove);
    return item;
  }));
}

function say(text) { field("picture-note").textContent = text; }
