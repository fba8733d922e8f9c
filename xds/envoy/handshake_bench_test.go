package envoy_test

import (
	"crypto/tls"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const benchService = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: db, namespace: shop}
spec:
  ingress: [{port: {number: PORT, name: tcp, protocol: TCP}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:LINES"}]
  egress: [{hosts: ["~/*"]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
`

// BenchmarkNewConnection is what it costs an Envoy that no session resumes: a new
// connection with mTLS, for one line, whole and resumed. The client's side of it is
// this process, and not counted in envoy-µs.
func BenchmarkNewConnection(b *testing.B) {
	envoytest.Binary(b)
	for _, resumed := range []bool{false, true} {
		b.Run(map[bool]string{false: "whole", true: "resumed"}[resumed], func(b *testing.B) {
			f := &fixture{ca: newAuthority(b), resumable: resumed}
			port := envoytest.FreePorts(b, 1)[0]
			m := strings.NewReplacer("PORT", strconv.Itoa(port), "LINES", strconv.Itoa(lineServer(b))).Replace(benchService)
			e := f.start(b, snapshotOf(b, m, ""), proxyFile{Namespace: "shop", ServiceAccount: "db", IP: "127.0.0.1", Interception: "NONE"})
			cfg := &tls.Config{
				Certificates: []tls.Certificate{f.ca.pair(b, webID)}, InsecureSkipVerify: true, ServerName: "db",
				ClientSessionCache: tls.NewLRUClientSessionCache(8),
			}
			envoytest.Eventually(b, envoytest.Patience, func() error {
				_, err := echoOver(b.Context(), at("127.0.0.1", port), cfg)
				return err
			})
			before := cpuOf(b, e.PID())
			for b.Loop() {
				got, err := echoOver(b.Context(), at("127.0.0.1", port), cfg)
				if err != nil || got != resumed {
					b.Fatalf("resumed %v, %v", got, err)
				}
			}
			b.ReportMetric(float64((cpuOf(b, e.PID())-before).Microseconds())/float64(b.N), "envoy-µs/op")
		})
	}
}

// cpuOf is what a process has used of the processor.
func cpuOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fatalIf(tb, err, "reading what Envoy has used")
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const utime, stime, tick = 11, 12, 10 * time.Millisecond
	var sum time.Duration
	for _, at := range []int{utime, stime} {
		n, err := strconv.Atoi(fields[at])
		fatalIf(tb, err, "reading what Envoy has used")
		sum += time.Duration(n) * tick
	}
	return sum
}
