// Makes the search box work on pages that were opened from the disk. Browsers start no worker there, so a hidden frame
// runs the theme's search script instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => this.load(one)), this.ready)
      this.ready = Promise.resolve()
      this.ready = this.load(url)
    }

    load(url) {
      return new Promise(resolve => {
        const script = this.inside.document.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = resolve
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
