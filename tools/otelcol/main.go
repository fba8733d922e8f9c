// Command otelcol is an OpenTelemetry Collector for tests. It receives OTLP by gRPC and HTTP, and
// writes what it received to files: for each batch a line, which is OTLP's message in base64.
// (OTLP's JSON has other bytes for ids than the messages' own JSON, so that readers would need a
// decoder for it.)
package main

import (
	"context"
	"encoding/base64"
	"log"
	"os"
	"path/filepath"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Description: "OpenTelemetry Collector for tests", Version: "test"},
		Factories: func() (f otelcol.Factories, err error) {
			if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
				return f, err
			}
			f.Telemetry = otelconftelemetry.NewFactory()
			f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](linesFactory())
			return f, err
		},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			DefaultScheme:     "file",
		}},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}

// linesConfig is the configuration of the exporter "lines".
type linesConfig struct {
	// Dir is where traces, logs and metrics are.
	Dir string `mapstructure:"dir"`
}

// lines is an exporter that appends to a file.
type lines struct {
	component.StartFunc
	component.ShutdownFunc
	path string
	mu   sync.Mutex // guards the file
}

func (l *lines) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (l *lines) write(b []byte, err error) error {
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(base64.StdEncoding.AppendEncode(nil, b), '\n')) // one write; a reader takes whole lines only
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

type (
	linesOfTraces  struct{ *lines }
	linesOfLogs    struct{ *lines }
	linesOfMetrics struct{ *lines }
)

func (l linesOfTraces) ConsumeTraces(_ context.Context, d ptrace.Traces) error {
	return l.write((&ptrace.ProtoMarshaler{}).MarshalTraces(d))
}

func (l linesOfLogs) ConsumeLogs(_ context.Context, d plog.Logs) error {
	return l.write((&plog.ProtoMarshaler{}).MarshalLogs(d))
}

func (l linesOfMetrics) ConsumeMetrics(_ context.Context, d pmetric.Metrics) error {
	return l.write((&pmetric.ProtoMarshaler{}).MarshalMetrics(d))
}

func linesFactory() exporter.Factory {
	in := func(cfg component.Config, name string) *lines {
		return &lines{path: filepath.Join(cfg.(*linesConfig).Dir, name)}
	}
	return exporter.NewFactory(component.MustNewType("lines"), func() component.Config { return &linesConfig{} },
		exporter.WithTraces(func(_ context.Context, _ exporter.Settings, cfg component.Config) (exporter.Traces, error) {
			return linesOfTraces{in(cfg, "traces")}, nil
		}, component.StabilityLevelDevelopment),
		exporter.WithLogs(func(_ context.Context, _ exporter.Settings, cfg component.Config) (exporter.Logs, error) {
			return linesOfLogs{in(cfg, "logs")}, nil
		}, component.StabilityLevelDevelopment),
		exporter.WithMetrics(func(_ context.Context, _ exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
			return linesOfMetrics{in(cfg, "metrics")}, nil
		}, component.StabilityLevelDevelopment))
}
