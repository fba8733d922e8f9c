//go:build jaeger

package traffic

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// jaeger is a running Jaeger that keeps its traces in memory.
type jaeger struct{ otlp, zipkin, query string }

func startJaeger(t *testing.T) *jaeger {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(envoytest.ModuleRoot(t), ".tools", "jaeger-*", "jaeger"))
	if err != nil || len(found) == 0 {
		t.Fatalf("there is no Jaeger in .tools: run `make test-jaeger`: %q, %v", found, err)
	}
	ports := envoytest.FreePorts(t, 8)
	at := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])) }
	j := &jaeger{otlp: at(0), zipkin: at(1), query: at(2)}
	log := &envoytest.Log{}
	cmd := exec.Command(found[len(found)-1],
		"--collector.otlp.grpc.host-port", j.otlp, "--collector.zipkin.host-port", j.zipkin, "--query.http-server.host-port", j.query,
		"--collector.otlp.http.host-port", at(3), "--query.grpc-server.host-port", at(4), "--collector.grpc-server.host-port", at(5),
		"--collector.http-server.host-port", at(6), "--admin.http.host-port", at(7))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("Jaeger's log:\n%s", log)
		}
	})
	envoytest.Eventually(t, envoytest.Patience, func() error {
		select {
		case <-ended:
			t.Fatal("Jaeger ended")
		default:
		}
		for _, address := range []string{j.otlp, j.zipkin, j.query} {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			_ = conn.Close()
		}
		return nil
	})
	return j
}

// jaegerTrace is a trace as Jaeger's query API gives it.
type jaegerTrace struct {
	Spans []struct {
		SpanID        string `json:"spanID"`
		OperationName string `json:"operationName"`
		ProcessID     string `json:"processID"`
		References    []struct {
			RefType string `json:"refType"`
			SpanID  string `json:"spanID"`
		} `json:"references"`
		Tags []struct {
			Key   string `json:"key"`
			Value any    `json:"value"`
		} `json:"tags"`
	} `json:"spans"`
	Processes map[string]struct {
		ServiceName string `json:"serviceName"`
	} `json:"processes"`
}

// traces are those that a service has spans in.
func (j *jaeger) traces(t *testing.T, service string) ([]jaegerTrace, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+j.query+"/api/traces?service="+service, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Timeout: envoytest.Patience}).Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s, %w", res.Status, body, err)
	}
	var out struct {
		Data []jaegerTrace `json:"data"`
	}
	return out.Data, json.Unmarshal(body, &out)
}

// spansOfCall says whether a trace has the spans of a call: the server's below the client's.
func (tr *jaegerTrace) spansOfCall() error {
	type span struct {
		id, parent, name string
		tags             map[string]string
	}
	by := map[string]span{}
	for _, s := range tr.Spans {
		out := span{id: s.SpanID, name: s.OperationName, tags: map[string]string{}}
		for _, r := range s.References {
			if r.RefType == "CHILD_OF" {
				out.parent = r.SpanID
			}
		}
		for _, tag := range s.Tags {
			out.tags[tag.Key] = fmt.Sprint(tag.Value)
		}
		by[tr.Processes[s.ProcessID].ServiceName] = out
	}
	client, server := by["client.shop"], by["echo.shop"]
	if client.id == "" || server.parent != client.id {
		return fmt.Errorf("the span of echo is not below that of the client: %v", by)
	}
	for name, s := range map[string]span{"client": client, "echo": server} {
		for tag, want := range map[string]string{"path": "one", "http.status_code": "200", "istio.canonical_service": name, "istio.namespace": "shop"} {
			if s.tags[tag] != want {
				return fmt.Errorf("%s of %s is %q, want %q: %v", tag, name, s.tags[tag], want, s.tags)
			}
		}
		if !strings.HasPrefix(s.name, echoHost+":9080/") {
			return fmt.Errorf("the span of %s has the name %s", name, s.name)
		}
	}
	return nil
}

// TestTracesInJaeger: a real Jaeger shows a request through both hosts as one trace, whether it comes
// by OTLP or in Zipkin's format.
func TestTracesInJaeger(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		provider string
		address  func(*jaeger) string
	}{
		"otlp":   {"opentelemetry: {service: collector.watch.internal, port: 4317}", func(j *jaeger) string { return j.otlp }},
		"zipkin": {"zipkin: {service: collector.watch.internal, port: 4317}", func(j *jaeger) string { return j.zipkin }},
	} {
		for _, version := range envoytest.Ends() {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				j := startJaeger(t)
				_, port, err := net.SplitHostPort(c.address(j))
				if err != nil {
					t.Fatal(err)
				}
				entry := fmt.Sprintf(collectorEntry, port)
				if name == "zipkin" {
					entry = strings.ReplaceAll(entry, "name: grpc, protocol: GRPC", "name: http, protocol: HTTP")
				}
				tracedCall(t, version, entry, c.provider)
				envoytest.Eventually(t, envoytest.Patience, func() error {
					all, err := j.traces(t, "echo.shop")
					if err != nil || len(all) == 0 {
						return fmt.Errorf("there are %d traces: %w", len(all), err)
					}
					return all[len(all)-1].spansOfCall()
				})
			})
		}
	}
}
