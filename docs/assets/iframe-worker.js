// Search in a browser that opened the site from the file system. Browsers refuse workers there, so the search runs in a
// hidden frame with the same interface; over HTTP this file does nothing.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      }
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = resolve
        script.onerror = reject
        inside.document.documentElement.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow
        const message = new inside.MessageEvent("message", { data })
        inside.dispatchEvent(message)
        if (inside.onmessage) inside.onmessage(message)
      })
    }

    terminate() {
      this.frame.remove()
    }
  }
}
