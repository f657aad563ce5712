// kafkajs as a program: `node kafkajs_client.js everything SETTINGS TOPIC COUNT`; what it does and prints is described in tests/peers/clients.py.
const fs = require('fs')
const { ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

const GIVE_UP_MS = 20000
const MORE_MS = 200
const PART = 100
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const [entry, topic, count] = [JSON.parse(fs.readFileSync(process.argv[3])), process.argv[4], Number(process.argv[5])]

async function main() {
  const settings = { brokers: [`${entry.host}:${entry.port}`], logLevel: logLevel.ERROR, retry: { retries: 30, maxRetryTime: 1000 } }
  if (entry.tls) {
    settings.ssl = { ca: [fs.readFileSync(entry.ca)] }
    if (entry.certificate) Object.assign(settings.ssl, { cert: fs.readFileSync(entry.certificate), key: fs.readFileSync(entry.key) })
  }
  if (entry.mechanism) settings.sasl = { mechanism: entry.mechanism.toLowerCase(), username: entry.user, password: entry.password }
  const kafka = new Kafka(settings)
  const numbers = (first, end) => Array.from({ length: end - first }, (_, index) => ({ value: String(first + index) }))

  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 3, replicationFactor: 3 }], waitForLeaders: true })
  for (const node of (await admin.describeCluster()).brokers) console.log(`broker ${node.host}:${node.port}`)
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '3600000' }] }] })

  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  for (let first = 0; first < count; first += PART) {
    await producer.send({ topic, acks: -1, messages: numbers(first, Math.min(first + PART, count)) })
    await pause(1000 * entry.pause_s)
  }
  await producer.disconnect()
  const within = kafka.producer({ idempotent: true, transactionalId: topic, maxInFlightRequests: 1 })
  await within.connect()
  const committed = await within.transaction()
  await committed.send({ topic, messages: numbers(count, 2 * count) })
  await committed.commit()
  const aborted = await within.transaction()
  await aborted.send({ topic, messages: [{ value: 'aborted' }] })
  await aborted.abort()
  await within.disconnect()

  const consumer = kafka.consumer({ groupId: topic, maxWaitTimeInMs: MORE_MS })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  let [got, last] = [0, Date.now()]
  await consumer.run({
    eachMessage: async ({ message }) => {
      console.log(`value ${message.value}`)
      got += 1
      last = Date.now()
    },
  })
  while (Date.now() - last < (got < 2 * count ? GIVE_UP_MS : MORE_MS)) await pause(MORE_MS / 4)
  await consumer.disconnect()
  const described = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
  console.log(`retention ${described.resources[0].configEntries[0].configValue}`)
  await admin.deleteTopics({ topics: [topic] })
  console.log(`deleted ${topic}`)
  await admin.disconnect()
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
