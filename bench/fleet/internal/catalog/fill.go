package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Spec says how large a catalog is.
type Spec struct {
	// Services, and how many instances each has, spread over so many nodes.
	Services, Instances, Nodes int
}

// batch is how many operations one transaction has: Consul takes 128.
const batch = 128

// writers is how many transactions are on their way at once.
const writers = 4

// Name is the name of a service.
func Name(service int) string { return fmt.Sprintf("svc-%05d", service) }

// Host is the host that a service has in the mesh.
func Host(service int) string { return Name(service) + ".service.consul" }

// Address is that of an instance.
func (s Spec) Address(service, instance int) string {
	n := 256 + service*s.Instances + instance
	if instance >= s.Instances { // one that is added: beyond all others
		n = 256 + s.Services*s.Instances + service
	}
	return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)
}

func id(service, instance int) string { return fmt.Sprintf("%s-%02d", Name(service), instance) }

func (s Spec) node(service, instance int) string {
	return fmt.Sprintf("node-%05d", (service*s.Instances+instance)%s.Nodes)
}

// The operations of a transaction, as Consul's API has them.
type (
	operation struct {
		Node    *nodeOp    `json:",omitempty"`
		Service *serviceOp `json:",omitempty"`
		Check   *checkOp   `json:",omitempty"`
	}
	nodeOp struct {
		Verb string
		Node node
	}
	node      struct{ Node, Address string }
	serviceOp struct {
		Verb, Node string
		Service    instance
	}
	instance struct {
		ID, Service, Address string
		Port                 int
		Tags                 []string
		Meta                 map[string]string
	}
	checkOp struct {
		Verb  string
		Check check
	}
	check struct {
		Node, CheckID, Name, Status, Output string
		ServiceID                           string `json:",omitempty"`
	}
)

// setNode registers a node with a check of its own. It is not that of Consul's
// gossip, serfHealth: a node that has it and is no member is soon removed.
func (s Spec) setNode(n int) []operation {
	name := fmt.Sprintf("node-%05d", n)
	return []operation{
		{Node: &nodeOp{"set", node{name, fmt.Sprintf("10.255.%d.%d", n>>8&255, n&255)}}},
		{Check: &checkOp{"set", check{Node: name, CheckID: "host", Name: "Host", Status: "passing", Output: "Load 0.42, 61 % of memory free"}}},
	}
}

// setInstance registers an instance with a check of its own.
func (s Spec) setInstance(service, i int) []operation {
	version := []string{"v1", "v2"}[i%2]
	return []operation{
		{Service: &serviceOp{"set", s.node(service, i), instance{
			ID: id(service, i), Service: Name(service), Address: s.Address(service, i), Port: 8080,
			// The second is one of Fabio's, which is no label: real catalogs have what
			// the mesh has to leave out and to note.
			Tags: []string{"version=" + version, "urlprefix-/" + Name(service)},
			Meta: map[string]string{"protocol": "http", "team": fmt.Sprintf("team-%02d", service%10)},
		}}},
		s.setCheck(service, i, true),
	}
}

func (s Spec) setCheck(service, i int, passing bool) operation {
	c := check{
		Node: s.node(service, i), CheckID: "service:" + id(service, i), Name: "Service '" + Name(service) + "' check",
		Status: "passing", Output: "HTTP GET http://127.0.0.1:8080/health: 200 OK Output: ok", ServiceID: id(service, i),
	}
	if !passing {
		c.Status, c.Output = "critical", "Get \"http://127.0.0.1:8080/health\": dial tcp 127.0.0.1:8080: connect: connection refused"
	}
	return operation{Check: &checkOp{"set", c}}
}

// Writer changes a catalog over Consul's API.
type Writer struct {
	Spec Spec
	// URL is where Consul answers over plain HTTP.
	URL    string
	Client *http.Client
}

// Fill registers everything, in transactions of at most 128 operations, four at
// once.
func (w *Writer) Fill(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var nodes []operation
	for n := range w.Spec.Nodes {
		nodes = append(nodes, w.Spec.setNode(n)...)
	}
	for len(nodes) > 0 {
		n := min(batch, len(nodes))
		if err := w.commit(ctx, nodes[:n]); err != nil {
			return err
		}
		nodes = nodes[n:]
	}
	batches := make(chan []operation)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for ops := range batches {
				if err := w.commit(ctx, ops); err != nil {
					cancel(err)
				}
			}
		})
	}
	w.instances(ctx, batches)
	close(batches)
	wg.Wait()
	return context.Cause(ctx)
}

// instances are those of all services, as batches.
func (w *Writer) instances(ctx context.Context, out chan<- []operation) {
	var ops []operation
	send := func() bool {
		select {
		case out <- ops:
			ops = nil
			return true
		case <-ctx.Done():
			return false
		}
	}
	for service := range w.Spec.Services {
		for i := range w.Spec.Instances {
			ops = append(ops, w.Spec.setInstance(service, i)...)
			if len(ops) >= batch-1 && !send() {
				return
			}
		}
	}
	if len(ops) > 0 {
		send()
	}
}

// SetHealth makes the check of an instance pass or fail.
func (w *Writer) SetHealth(ctx context.Context, service, i int, passing bool) error {
	return w.commit(ctx, []operation{w.Spec.setCheck(service, i, passing)})
}

func (w *Writer) commit(ctx context.Context, ops []operation) error {
	body, err := json.Marshal(ops)
	if err != nil {
		return fmt.Errorf("writing to Consul: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, w.URL+"/v1/txn", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("writing to Consul: %w", err)
	}
	res, err := w.Client.Do(req)
	if err != nil {
		return fmt.Errorf("writing to Consul: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("writing to Consul: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("writing to Consul: %s: %.300s", res.Status, answer)
	}
	return nil
}

// Ready asks whether Consul takes writes.
func (w *Writer) Ready(ctx context.Context) error { return w.commit(ctx, w.Spec.setNode(0)) }

// Add registers one more instance of a service; Remove takes it away again.
func (w *Writer) Add(ctx context.Context, service int) (address string, err error) {
	return w.Spec.Address(service, w.Spec.Instances), w.commit(ctx, w.Spec.setInstance(service, w.Spec.Instances))
}

// Remove deregisters what Add has registered.
func (w *Writer) Remove(ctx context.Context, service int) error {
	s := w.Spec
	return w.commit(ctx, []operation{{Service: &serviceOp{"delete", s.node(service, w.Spec.Instances), instance{ID: id(service, w.Spec.Instances), Service: Name(service)}}}})
}
