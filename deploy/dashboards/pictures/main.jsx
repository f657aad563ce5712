// Draws one dashboard (Grafana's Classic JSON) with Grafana's own panel components, so that a picture needs no Grafana.
//
// window.PICTURE = { dashboard, from, to, step, subtitle, variables: {name: text}, results: { "<panel id>": [{ refId, legendFormat, format, instant, data }] } }
// from, to and step: milliseconds. data: what Prometheus answered, variables in the queries replaced. document.title says "drawn" when everything is there.
import {
  FieldConfigOptionsRegistry,
  FieldType,
  ThemeContext,
  applyFieldOverrides,
  cacheFieldDisplayNames,
  createTheme,
  dateTime,
  getDisplayProcessor,
  getDisplayValueAlignmentFactors,
  getFieldDisplayName,
  getFieldDisplayValues,
  renderMarkdown,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

const { dashboard, from, to, step, subtitle, variables, results } = window.PICTURE;
const theme = createTheme({ colors: { mode: 'dark' } });
const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
const COLUMN = (1440 - 24) / 24;
const CELL = 30;
const GAP = 8;
const TOP = 64;

const same = (value) => value;
const option = (path, isCustom) => ({
  id: isCustom ? `custom.${path}` : path,
  path,
  name: path,
  isCustom,
  process: same,
  override: same,
  shouldApply: () => true,
  editor: () => null,
  settings: {},
});
const STANDARD = ['unit', 'min', 'max', 'decimals', 'color', 'thresholds', 'mappings', 'displayName', 'noValue', 'links', 'fieldMinMax', 'filterable', 'description'];
standardFieldConfigEditorRegistry.setInit(() => STANDARD.map((path) => option(path, false)));
// Some are published under two names.
const transformers = new Map(Object.values(standardTransformers).map((info) => [info.id, info]));
standardTransformersRegistry.setInit(() =>
  [...transformers.values()].map((info) => ({ id: info.id, name: info.name, transformation: () => Promise.resolve(info), editor: () => null }))
);

const LINE = {
  drawStyle: 'line',
  lineInterpolation: 'linear',
  lineWidth: 1,
  fillOpacity: 0,
  gradientMode: 'none',
  showPoints: 'never',
  pointSize: 5,
  spanNulls: false,
  axisPlacement: 'auto',
  axisLabel: '',
  scaleDistribution: { type: 'linear' },
  stacking: { mode: 'none', group: 'A' },
  hideFrom: { legend: false, tooltip: false, viz: false },
  thresholdsStyle: { mode: 'off' },
};

/** The options that this panel sets, as a registry: only what is registered is applied. */
function registry(panel) {
  const custom = new Set(Object.keys({ ...LINE, ...panel.fieldConfig?.defaults?.custom }));
  for (const override of panel.fieldConfig?.overrides ?? []) {
    for (const { id } of override.properties) {
      if (id.startsWith('custom.')) {
        custom.add(id.slice('custom.'.length));
      }
    }
  }
  return new FieldConfigOptionsRegistry(() => [...STANDARD.map((path) => option(path, false)), ...[...custom].map((path) => option(path, true))]);
}

function legend(format, labels) {
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');
  }
  const { __name__: name = '', ...rest } = labels;
  const pairs = Object.entries(rest).map(([key, value]) => `${key}="${value}"`);
  return pairs.length ? `${name}{${pairs.join(', ')}}` : name || 'Value';
}

const number = (text) => (text === 'NaN' ? null : text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

/** Panels where Grafana puts them: each as high up as those above it let it; what a closed row holds leaves no gap. */
function compacted(panels) {
  const bottoms = Array(24).fill(0);
  return [...panels]
    .sort((one, other) => one.gridPos.y - other.gridPos.y || one.gridPos.x - other.gridPos.x)
    .map((panel) => {
      const { x, w, h } = panel.gridPos;
      const y = Math.max(...bottoms.slice(x, x + w));
      bottoms.fill(y + h, x, x + w);
      return { ...panel, gridPos: { x, y, w, h } };
    });
}

/** One frame for a table: a column for each label, as Grafana's Prometheus data source makes it. */
function tableFrame(query, many) {
  const names = [...new Set(query.data.result.flatMap((series) => Object.keys(series.metric)))].sort();
  const points = query.data.result.map((series) => series.value ?? series.values.at(-1));
  return toDataFrame({
    refId: query.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map(([time]) => time * 1000) },
      ...names.map((name) => ({
        name,
        type: FieldType.string,
        config: { filterable: true },
        values: query.data.result.map((series) => series.metric[name] ?? ''),
      })),
      { name: many ? `Value #${query.refId}` : 'Value', type: FieldType.number, values: points.map(([, value]) => number(value)) },
    ],
  });
}

/** With an empty point wherever Prometheus has none for longer than a step: lines end there. */
function withGaps(points) {
  return points.flatMap(([time, value], index) => {
    const before = index ? points[index - 1][0] : time;
    return (time - before) * 1000 > 1.5 * step ? [[before + step / 1000, 'NaN'], [time, value]] : [[time, value]];
  });
}

/** A frame for each series. */
function seriesFrames(query) {
  return query.data.result.map((series) => {
    const points = withGaps(series.values ?? [series.value]);
    return toDataFrame({
      refId: query.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: points.map(([time]) => time * 1000) },
        {
          name: 'Value',
          type: FieldType.number,
          labels: series.metric,
          config: { displayNameFromDS: legend(query.legendFormat, series.metric) },
          values: points.map(([, value]) => number(value)),
        },
      ],
    });
  });
}

async function framesOf(panel) {
  const queries = results[String(panel.id)] ?? [];
  const raw = queries.flatMap((query) => (query.format === 'table' ? (query.data.result.length ? [tableFrame(query, queries.length > 1)] : []) : seriesFrames(query)));
  return lastValueFrom(transformDataFrame(panel.transformations ?? [], raw));
}

function configOf(panel) {
  const found = panel.fieldConfig ?? {};
  const color = { mode: panel.type === 'timeseries' ? 'palette-classic' : 'thresholds' };
  const defaults = { color, thresholds: { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }] }, ...found.defaults };
  if (panel.type === 'timeseries') {
    defaults.custom = { ...LINE, ...found.defaults?.custom };
  }
  defaults.thresholds = { ...defaults.thresholds, steps: defaults.thresholds.steps.map((step) => ({ ...step, value: step.value ?? -Infinity })) };
  return { defaults, overrides: found.overrides ?? [] };
}

function Values({ panel, frames, fieldConfig, width, height }) {
  const { options = {} } = panel;
  const values = getFieldDisplayValues({
    data: frames,
    reduceOptions: { calcs: ['lastNotNull'], values: false, ...options.reduceOptions },
    fieldConfig,
    replaceVariables: same,
    theme,
    sparkline: panel.type === 'stat' && options.graphMode !== 'none',
  });
  const wide = options.orientation === 'vertical' || (options.orientation !== 'horizontal' && width > height && panel.type === 'stat');
  const [columns, rows] = panel.type === 'bargauge' && options.orientation !== 'vertical' ? [1, values.length] : wide ? [values.length, 1] : [1, values.length];
  const [each, high] = [(width - GAP * (columns - 1)) / columns, (height - GAP * (rows - 1)) / rows];
  const alone = values.length === 1 && !['name', 'value_and_name'].includes(options.textMode);
  const draw = ({ display, sparkline, field, view, colIndex }, index) => {
    if (panel.type === 'bargauge') {
      return (
        <BarGauge
          key={index}
          theme={theme}
          width={each}
          height={Math.min(high, 48)}
          field={field}
          value={display}
          display={view?.getFieldDisplayProcessor(colIndex)}
          orientation={options.orientation === 'vertical' ? 'vertical' : 'horizontal'}
          displayMode={options.displayMode ?? 'gradient'}
          valueDisplayMode={options.valueMode}
          namePlacement={options.namePlacement}
          showUnfilled={options.showUnfilled ?? true}
          itemSpacing={GAP}
          alignmentFactors={getDisplayValueAlignmentFactors(values)}
        />
      );
    }
    return (
      <BigValue
        key={index}
        theme={theme}
        width={each}
        height={high}
        value={alone ? { ...display, title: undefined } : display}
        count={values.length}
        sparkline={sparkline}
        colorMode={options.colorMode ?? 'value'}
        graphMode={options.graphMode ?? 'area'}
        justifyMode={options.justifyMode ?? 'auto'}
        textMode={options.textMode ?? 'auto'}
        text={options.text}
      />
    );
  };
  return <div style={{ display: 'flex', flexDirection: columns > 1 ? 'row' : 'column', gap: GAP, width, height, overflow: 'hidden' }}>{values.map(draw)}</div>;
}

/** States over time, a row for each series: Grafana's own component for it is not published by itself. */
function States({ frames, width, height }) {
  const rows = frames.flatMap((frame) => {
    const [time, ...others] = frame.fields;
    return others.filter((field) => field.type !== FieldType.time).map((field) => ({ time, field, name: getFieldDisplayName(field, frame, frames) }));
  });
  const left = Math.min(width / 3, 12 + 7 * Math.max(0, ...rows.map(({ name }) => name.length)));
  const [high, scale] = [Math.min(32, (height - 20) / Math.max(1, rows.length)), (width - left) / (to - from)];
  return (
    <svg width={width} height={height} fontSize={12} fill={theme.colors.text.primary}>
      {rows.map(({ time, field, name }, row) => (
        <g key={row} transform={`translate(0, ${row * high})`}>
          <text x={left - 8} y={high / 2 + 4} textAnchor="end">{name}</text>
          {spells(time.values, field).map(({ start, end, shown }) => (
            <g key={start}>
              <rect x={left + (start - from) * scale} y={2} width={Math.max(1, (end - start) * scale)} height={high - 4} fill={shown.color} />
              {(end - start) * scale > 7 * shown.text.length && <text x={left + (start - from) * scale + 4} y={high / 2 + 4} fill="#fff">{shown.text}</text>}
            </g>
          ))}
        </g>
      ))}
    </svg>
  );
}

function spells(times, field) {
  const display = field.display ?? getDisplayProcessor({ field, theme });
  const found = [];
  field.values.forEach((value, index) => {
    const shown = display(value);
    const end = Math.min(times[index + 1] ?? to, times[index] + step); // without a value there is a gap
    const last = found.at(-1);
    if (last && last.value === value && last.end >= times[index]) {
      last.end = end;
    } else if (value !== null && value !== undefined) {
      found.push({ start: times[index], end, value, shown: { text: `${shown.prefix ?? ''}${shown.text}${shown.suffix ?? ''}`, color: shown.color ?? '#666' } });
    }
  });
  return found;
}

function Body({ panel, frames, fieldConfig, width, height }) {
  const { options = {} } = panel;
  if (panel.type === 'text') {
    return <div className="markdown-html" dangerouslySetInnerHTML={{ __html: renderMarkdown(options.content ?? '') }} />;
  }
  if (!frames.some((frame) => frame.length > 0)) {
    const text = fieldConfig.defaults.noValue ?? 'No data';
    return <div style={{ display: 'grid', placeItems: 'center', width, height, color: theme.colors.text.secondary }}>{text}</div>;
  }
  switch (panel.type) {
    case 'timeseries':
      return (
        <TimeSeries
          frames={frames.map((frame) => ({ ...frame, length: frame.length }))}
          structureRev={1}
          width={width}
          height={height}
          timeRange={timeRange}
          timeZone="utc"
          legend={{ showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], ...options.legend }}
          options={options}
        />
      );
    case 'table':
      return <TableNG data={frames[options.frameIndex ?? 0]} width={width} height={height} noHeader={options.showHeader === false} cellHeight={options.cellHeight} initialSortBy={options.sortBy} fieldConfig={fieldConfig} />;
    case 'state-timeline':
      return <States frames={frames} width={width} height={height} />;
    case 'stat':
    case 'bargauge':
    case 'gauge': // as a stat: the round one is not published by itself
      return <Values panel={panel} frames={frames} fieldConfig={fieldConfig} width={width} height={height} />;
    default:
      return <div>{`a panel of the type ${panel.type} is not drawn here`}</div>;
  }
}

function Panel({ panel, raw }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * COLUMN - GAP, h * (CELL + GAP) - GAP];
  const place = { position: 'absolute', left: 16 + x * COLUMN, top: TOP + y * (CELL + GAP), width, height };
  if (panel.type === 'row') {
    const inside = panel.collapsed ? `  (${panel.panels?.length ?? 0} panels)` : '';
    return <div style={{ ...place, height: CELL, fontSize: 16, paddingTop: 4 }}>{`${panel.collapsed ? '›' : '⌄'} ${panel.title}${inside}`}</div>;
  }
  const fieldConfig = configOf(panel);
  const frames = applyFieldOverrides({ data: raw, fieldConfig, fieldConfigRegistry: registry(panel), replaceVariables: same, theme, timeZone: 'utc' });
  cacheFieldDisplayNames(frames);
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height} displayMode={panel.transparent ? 'transparent' : 'default'}>
        {(innerWidth, innerHeight) => <Body panel={panel} frames={frames} fieldConfig={fieldConfig} width={innerWidth} height={innerHeight} />}
      </PanelChrome>
    </div>
  );
}

function Dashboard() {
  const [all, setAll] = useState(null);
  useEffect(() => {
    const panels = compacted(dashboard.panels ?? []);
    Promise.all(panels.map(framesOf)).then((frames) => setAll(panels.map((panel, index) => [panel, frames[index]])));
  }, []);
  useEffect(() => {
    if (all) {
      setTimeout(() => (document.title = 'drawn'), 500);
    }
  }, [all]);
  const shown = Object.entries(variables).map(([name, text]) => `${name}: ${text}`).join('    ');
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ padding: '10px 16px', height: TOP, whiteSpace: 'pre' }}>
        <span style={{ fontSize: 20, fontWeight: 500 }}>{dashboard.title}</span>
        <span style={{ marginLeft: 24, color: theme.colors.text.secondary }}>{`${subtitle}    ${shown}`}</span>
      </div>
      {(all ?? []).map(([panel, raw]) => (
        <Panel key={panel.id ?? panel.title} panel={panel} raw={raw} />
      ))}
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('dashboard')).render(<Dashboard />);
