package scenario

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/bench/fleet/internal/envoys"
	"github.com/fairlead/fairlead/bench/fleet/internal/meshgen"
)

// FleetConfig is what a fleet's process is started with.
type FleetConfig struct {
	Address string       `json:"address"`
	Mesh    meshgen.Spec `json:"world"`
	// First and Size say which of the mesh's proxies are in this fleet.
	First int `json:"first"`
	Size  int `json:"size"`
	// Minor is the release of Envoy, 1.Minor; 0 means 40.
	Minor     uint32 `json:"minor"`
	PerConn   int    `json:"per_conn"`
	Reconnect bool   `json:"reconnect"`
	// ReadBuffer is the kernel's, of each connection, in bytes; 0 leaves it alone.
	ReadBuffer int `json:"read_buffer"`
	// TLS makes the streams be of hosts, each with the identity that one of the
	// tokens gives; without tokens they are of nobody in particular.
	TLS    bool     `json:"tls"`
	Tokens []string `json:"tokens,omitempty"`
}

// firstVHDS is the first release of Envoy that takes virtual hosts on the
// aggregated stream, and knows its node after the first request.
const firstVHDS = 38

func (c FleetConfig) minor() uint32 {
	if c.Minor == 0 {
		return 40
	}
	return c.Minor
}

// node is the node of an Envoy, without the list of its extensions.
func (c FleetConfig) node(i int) []byte {
	b, err := proto.Marshal(c.decoded(i))
	if err != nil {
		return nil
	}
	return b
}

// decoded is the same, as those take it who marshal it themselves.
func (c FleetConfig) decoded(i int) *corev3.Node {
	p := c.Mesh.Proxy(c.First + i)
	labels := map[string]any{}
	for k, v := range p.Labels {
		labels[k] = v
	}
	fields := map[string]any{
		"NAMESPACE": p.Namespace, "SERVICE_ACCOUNT": p.Account, "WORKLOAD_NAME": p.Name, "INSTANCE_IPS": p.Address,
		"LABELS": labels, "CLUSTER_ID": "Kubernetes", "MESH_ID": "cluster.local",
	}
	if c.Mesh.Capture && !p.Gateway {
		fields["INTERCEPTION_MODE"] = "REDIRECT"
	}
	metadata, err := structpb.NewStruct(fields)
	if err != nil {
		return nil
	}
	return &corev3.Node{
		Id: p.ID(), Cluster: p.Name + "." + p.Namespace, Metadata: metadata, UserAgentName: "envoy",
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: c.minor()},
		}},
	}
}

func (c FleetConfig) fleet(ctx context.Context, tap func(msg []byte)) (*envoys.Fleet, error) {
	dial, err := c.dialer(ctx)
	if err != nil {
		return nil, err
	}
	return envoys.New(envoys.Config{
		Size: c.Size, Node: c.node, Authority: c.Address, VHDS: c.minor() >= firstVHDS, PerConn: c.PerConn, Reconnect: c.Reconnect, Tap: tap,
		Dial: dial,
	}), nil
}

// order is a command for a fleet's process.
type order struct {
	Do     string        `json:"do"`
	Fleet  FleetConfig   `json:"fleet,omitzero"`
	Marker string        `json:"marker,omitempty"`
	Want   int           `json:"want,omitempty"`
	Quiet  time.Duration `json:"quiet,omitempty"`
	Within time.Duration `json:"within,omitempty"`
}

// answer is what it answers.
type answer struct {
	Error  string        `json:"error,omitempty"`
	Times  envoys.Times  `json:"times,omitzero"`
	Totals envoys.Totals `json:"totals,omitzero"`
}

// ServeFleet is the process of a fleet: it executes commands until its input ends.
func ServeFleet(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var f *envoys.Fleet
	lines := bufio.NewScanner(in)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		if o.Do == "make" {
			var err error
			if f, err = o.Fleet.fleet(ctx, nil); err != nil {
				return err
			}
		}
		if f == nil {
			return fmt.Errorf("reading an order: %q before there is a fleet", o.Do)
		}
		if err := encoder.Encode(execute(ctx, f, o)); err != nil {
			return fmt.Errorf("answering: %w", err)
		}
	}
	return lines.Err()
}

func execute(ctx context.Context, f *envoys.Fleet, o order) (a answer) {
	within, cancel := context.WithTimeout(ctx, o.Within)
	defer cancel()
	var err error
	switch o.Do {
	case "make":
	case "start":
		f.Start(ctx)
	case "close":
		f.Close()
	case "ready":
		a.Times, err = f.AwaitReady(within, o.Want, o.Quiet)
	case "arm":
		f.Arm(o.Marker)
	case "probe":
		a.Times, err = f.AwaitProbe(within, o.Want)
	case "totals":
		a.Totals = f.Totals()
	default:
		err = fmt.Errorf("no order %q", o.Do)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}
