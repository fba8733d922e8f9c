package manifest_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/manifest"
)

// longObjects are objects of which one list or map, in which each element is judged with the others, is n long.
func longObjects() map[string]func(n int) string {
	const meta = "metadata: {name: a, namespace: shop}\n"
	object := func(kind, spec string, element func(i int) string) func(n int) string {
		return func(n int) string {
			return "apiVersion: networking.istio.io/v1\nkind: " + kind + "\n" + meta + "spec:\n" + spec + each(n, element)
		}
	}
	two := func(kind, spec string, one, other func(i int) string, between string) func(n int) string {
		return func(n int) string {
			return "apiVersion: networking.istio.io/v1\nkind: " + kind + "\n" + meta + "spec:\n" + spec + each(n, one) + between + each(n, other)
		}
	}
	f := func(format string) func(i int) string {
		return func(i int) string {
			if !strings.Contains(format, "%") {
				return format
			}
			return fmt.Sprintf(format, i)
		}
	}
	const (
		port     = "  ports: [{number: 80, name: a, protocol: HTTP}]\n"
		route    = "route: [{destination: {host: a.b}}]"
		locality = "  host: a.b\n  trafficPolicy:\n    loadBalancer:\n      localityLbSetting:\n        distribute:\n"
	)
	return map[string]func(n int) string{
		"hosts that are no texts":    object("ServiceEntry", port+"  hosts:\n", f("  - 1\n")),
		"ports that are wrong":       object("ServiceEntry", "  hosts: [a.b]\n  ports:\n", f("  - {number: %d, name: a, protocol: X}\n")),
		"hosts of a VirtualService":  object("VirtualService", "  http: [{"+route+"}]\n  hosts:\n", f("  - h%d.b\n")),
		"equal hosts":                object("VirtualService", "  http: [{"+route+"}]\n  hosts:\n", f("  - h.b\n")),
		"headers that Envoy refuses": object("VirtualService", "  hosts: [a.b]\n  http:\n  - "+route+"\n    headers:\n      request:\n        set:\n", f("          h%d: \"%%X%%\"\n")),
		"matches of headers":         object("VirtualService", "  hosts: [a.b]\n  http:\n  - "+route+"\n    match:\n    - headers:\n", f("        \"_ %d\": {regex: \"(\"}\n")),
		"server names and hosts":     two("VirtualService", "  hosts:\n", f("  - h%d.b\n"), f("      - h%d.b\n"), "  tls:\n  - "+route+"\n    match:\n    - sniHosts:\n"),
		"server names, no hosts":     two("VirtualService", "  hosts:\n", f("  - h%d.b\n"), f("      - x%d.b\n"), "  tls:\n  - "+route+"\n    match:\n    - sniHosts:\n"),
		"prefixes of paths":          object("VirtualService", "  hosts: [a.b]\n  http:\n", f("  - {"+route+", match: [{uri: {prefix: /%d/}}]}\n")),
		"localities":                 object("DestinationRule", locality+"        - from: a\n          to:\n", f("            a%d/*: 1\n")),
		"localities of clients":      object("DestinationRule", locality, f("        - {from: a%d, to: {b: 100}}\n")),
		"ports that no endpoint has": two("ServiceEntry", "  hosts: [a.b]\n  resolution: STATIC\n  ports:\n", f("  - {number: %d, name: p%[1]d, protocol: HTTP}\n"), f("      x%d: 80\n"), "  endpoints:\n  - address: 10.0.0.1\n    ports:\n"),
		"expressions in one Telemetry": func(n int) string {
			return strings.Replace(object("Telemetry", "  metrics:\n  - overrides:\n    - tagOverrides:\n", f("        a%d: {value: \"a + \"}\n"))(n), "networking", "telemetry", 1)
		},
	}
}

func each(n int, element func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(element(i))
	}
	return b.String()
}

// TestReadingAnObjectIsLinear: an object with twice as many elements costs at most 2.5 times the CPU time, valid or not. A
// quadratic step costs four times. What is reported of it is no longer than a few times its text.
func TestReadingAnObjectIsLinear(t *testing.T) {
	race.SkipSequential(t)
	options := manifest.Options{Namespace: "shop", Namespaces: []string{"shop"}, NoUnixSockets: true, NoFiles: true, NoLocalAddresses: true}
	read := func(t *testing.T, text string) time.Duration {
		t.Helper()
		runtime.GC()
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector's work is not that of the reading
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var before, after syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &before); err != nil {
			t.Fatal(err)
		}
		_, faults := manifest.Decode(options, "a.yaml", []byte(text))
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &after); err != nil {
			t.Fatal(err)
		}
		said := 0
		for _, f := range faults {
			said += len(f.Message)
		}
		if said > 10*len(text)+100_000 {
			t.Errorf("%d bytes are reported of a text of %d", said, len(text))
		}
		return time.Duration(after.Utime.Nano() - before.Utime.Nano())
	}
	for name, text := range longObjects() {
		t.Run(name, func(t *testing.T) {
			n := 1000
			if testing.Short() {
				read(t, text(n)) // what is reported is compared
				return
			}
			for n < 64000 && min(read(t, text(n)), read(t, text(n))) < 40*time.Millisecond { // noise counts little there
				n *= 2
			}
			once, twice := read(t, text(n)), read(t, text(2*n))
			for runs := 1; runs < 3 || runs < 30 && float64(twice) > 2.5*float64(once); runs++ {
				once, twice = min(once, read(t, text(n))), min(twice, read(t, text(2*n)))
			}
			t.Logf("%d elements cost %s, and twice as many %s", n, once, twice)
			if ratio := float64(twice) / float64(once); ratio > 2.5 {
				t.Errorf("%d elements cost %s of CPU time, and twice as many %s: %.1f times", n, once, twice, ratio)
			}
		})
	}
}
